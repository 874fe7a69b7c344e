"""lra-ssm push and export: what they write, that it is what was trained, what they refuse (more: test_bad_input.py).

huggingface_hub's and wandb's calls are stand-ins, with the signatures of theirs; wandb writes its own offline files.
"""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import yaml
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import filter_repo_objects

from lra_ssm.cli.find_model import named_network
from lra_ssm.datamodules.language.tokenizer import CharacterTokenizer
from lra_ssm.models import Classifier, LanguageModel
from tests.runner import everything_below, only_run, printed, refused
from tests.test_text import checkpoint

FILES = {"config.json", "model.safetensors", "config.yaml", "README.md"}


@pytest.fixture
def run(tested: Path, here: Path) -> Path:
    """A copy of a tested run, in the working folder."""
    shutil.copytree(tested / "runs", "runs")
    return only_run(here).relative_to(here)


def done(capsys, *arguments: str) -> list[str]:
    return printed(list(arguments), capsys).splitlines()


def state_of(run: Path, name: str = "best") -> dict[str, torch.Tensor]:
    state = torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]
    return {key.removeprefix("network."): value for key, value in state.items()}


def changed(path: Path, change) -> None:
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def assert_holds(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """A saved model has exactly these weights."""
    found = Classifier.from_pretrained(folder).state_dict()
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)


# -- a folder ----------------------------------------------------------------------------------------------------------


def test_a_pushed_folder_is_the_run_with_a_card_and_can_be_fitted_again(run: Path, tested: Path, capsys) -> None:
    lines = done(capsys, "push", str(run), "./models/tiny", "--license=apache-2.0")
    assert lines == ["./models/tiny: use it with lra-ssm test ./models/tiny"]
    done(capsys, "push", str(run), "./models/tiny", "--license=apache-2.0", "--force")
    folder = Path("models/tiny")
    assert {path.name for path in folder.iterdir()} == FILES
    assert_holds(folder, state_of(run))
    source = json.loads((folder / "config.json").read_text())["source"]
    scored = json.loads((run / "test.json").read_text())
    assert source["metrics"]["test"] == scored["metrics"] and source["metrics"]["validation"].keys() == {"val/accuracy"}
    assert source["run"] == run.name and source["experiment"] == "tiny" and source["seed"] == 1
    assert source["data"]["vocabulary"][3] == "0" and source["data"]["examples"] == scored["data"]["examples"]
    assert source["data"]["digests"]["train_tokens"] and source["hardware"]["cpus"] and source["license"]
    assert source["files"].keys() == FILES - {"config.json", "README.md"}
    card = ModelCard.load("models/tiny/README.md")
    assert card.data.library_name == "lra_ssm" and card.data.license == "apache-2.0"
    assert card.data.tags == ["state-space-model", "b2s6"] and card.data.pipeline_tag == "text-classification"
    for text in (
        'Classifier.from_pretrained("./models/tiny")',
        "lra-ssm test ./models/tiny",
        "train 16, val 20, test 20",
        f"| test | test/accuracy | {scored['metrics']['test/accuracy']:.6g} |",
        "lightning fit --config config.yaml",
        f"Run tiny/{run.name}, best.ckpt, step 2.",
        " cores, started 20",
        "apache-2.0, stated by those who published these weights",
    ):
        assert text in card.text, card.text
    texts = [path.read_text() for path in folder.iterdir() if path.suffix != ".safetensors"]
    assert not any(str(tested.parent) in text or os.uname().nodename + '"' in text for text in texts)
    done(capsys, "pull", "./models/tiny")
    shutil.rmtree("runs")
    done(capsys, "fit", "--config", "models/tiny/config.yaml", f"--data.root={tested / 'data'}")
    assert only_run(Path.cwd()).name == run.name  # the same run by its identity
    assert_holds(folder, state_of(only_run(Path.cwd())))


def test_the_card_of_a_run_made_in_python_names_no_command_and_no_place(run: Path, capsys) -> None:
    record, config = json.loads((run / "run.json").read_text()), yaml.safe_load((run / "config.yaml").read_text())
    record["starts"][0]["command"] = ["/usr/lib/ipykernel_launcher.py", "-f", "/home/me/kernel.json"]
    (run / "run.json").write_text(json.dumps(record))
    config |= {"init_from": "/home/me/x.ckpt", "runs_dir": "/home/me/runs"}
    config["data"]["init_args"] |= {"root": "/home/me", "source": "/home/me/mine"}
    config["trainer"]["callbacks"] = [{"dirpath": "/home/me/b", "n": 1}]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    done(capsys, "push", str(run), "./pushed")
    text = Path("pushed/README.md").read_text()
    assert "It was trained from Python" in text and "lightning fit" not in text and "lra-ssm test" not in text
    assert "/home/me" not in text and "Those who published these weights state none" in text
    pushed = yaml.safe_load(Path("pushed/config.yaml").read_text())
    assert pushed["init_from"] == "x.ckpt" and "runs_dir" not in pushed
    assert pushed["trainer"]["callbacks"] == [{"dirpath": "b", "n": 1}]
    assert pushed["data"]["init_args"]["source"] == "mine" and "root" not in pushed["data"]["init_args"]


def test_what_is_not_finished_or_tested_is_refused_unless_told_and_nan_always(run: Path, capsys) -> None:
    record, best = run / "run.json", run / "checkpoints/best.ckpt"
    whole = record.read_text()
    record.write_text(whole.replace('"status": "finished"', '"status": "interrupted"'))
    line = refused(["push", str(run), "./pushed"], capsys)
    assert line == f"{run}: not finished (interrupted, step 2 of 2): --unfinished pushes it all the same"
    done(capsys, "push", str(run), "./unfinished", "--unfinished")
    assert "The run is not finished: interrupted." in Path("unfinished/README.md").read_text()
    record.write_text(whole)
    assert "test has no complete score of its last.ckpt" in refused(["push", str(run), "./pushed", "--last"], capsys)
    (run / "test.json").unlink()
    assert "test has no complete score of its best.ckpt" in refused(["push", str(run), "./pushed"], capsys)
    done(capsys, "push", str(run), "./untested", "--unfinished", "--last")
    assert "It has not been scored on a test split." in Path("untested/README.md").read_text()
    assert_holds(Path("untested"), state_of(run, "last"))
    bad = torch.tensor([torch.nan, -torch.inf])
    changed(best, lambda s: s["state_dict"]["network.head.weight"][0, :2].copy_(bad))
    before = everything_below(Path.cwd())
    line = refused(["push", str(run), "./pushed", "--unfinished"], capsys)
    assert "best.ckpt: head.weight is NaN or infinite in 2 of its 80 values" in line
    assert "NaN or infinite" in refused(["export", str(run), "--to", "exported"], capsys)
    assert everything_below(Path.cwd()) == before


# -- the Hub and wandb -------------------------------------------------------------------------------------------------


def test_a_repository_gets_one_commit_that_replaces_an_older_model(run: Path, capsys) -> None:
    def upload(self, *, repo_id, folder_path, commit_message, delete_patterns):
        assert commit_message == f"tiny/{run.name}"
        older = ["tokenizer.json", "pytorch_model.bin", "model-00001-of-2.safetensors", "notes.txt"]
        left = [*filter_repo_objects(older, ignore_patterns=delete_patterns)]
        assert left == ["notes.txt"]
        shutil.copytree(folder_path, repo_id)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/0")

    with (
        mock.patch.object(HfApi, "create_repo", autospec=True) as create,
        mock.patch.object(HfApi, "upload_folder", autospec=True, side_effect=upload) as uploading,
    ):
        (line,) = done(capsys, "push", str(run), "me/tiny")
        assert line == "https://hub/me/tiny/commit/0: use it with lra-ssm test me/tiny"
        assert {path.name for path in Path("me/tiny").iterdir()} == FILES
        assert_holds(Path("me/tiny"), state_of(run))
        assert 'from_pretrained("me/tiny")' in Path("me/tiny/README.md").read_text()
        done(capsys, "push", str(run), "hf://me/secret", "--private")
        given = [{"private": private, "exist_ok": True} for private in (None, True)]
        assert [call.kwargs for call in create.call_args_list] == given
        uploading.side_effect = ValueError("Invalid metadata in README.md.\nmore")
        line = refused(["push", str(run), "you/tiny"], capsys)
        assert line == "you/tiny: cannot be pushed (Invalid metadata in README.md. more)"


def test_an_artifact_is_logged_by_the_run_of_the_training(run: Path, capsys, monkeypatch) -> None:
    import wandb

    logged = []
    monkeypatch.setattr("wandb.Artifact.add_dir", lambda self, folder, **_: logged.append((self, os.listdir(folder))))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(Path.cwd() / name))
    line = done(capsys, "push", str(run), "wandb:me/lra/tiny")[-1]
    assert line.endswith("until `wandb sync` sends it: use it with lra-ssm test wandb:me/lra/tiny:latest")
    assert list((run / "wandb").glob(f"offline-run-*/run-{run.name}.wandb"))
    ((artifact, files),) = logged
    assert isinstance(artifact, wandb.Artifact) and artifact.type == "model" and artifact.name.startswith("tiny")
    assert set(files) == FILES
    monkeypatch.setattr("wandb.init", mock.Mock(side_effect=ValueError("No API key configured.\nmore")))
    line = refused(["push", str(run), "wandb:lra/tiny"], capsys)
    assert line == "wandb:lra/tiny: cannot be pushed (No API key configured. more)"


# -- export ------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_exported(run: Path, capsys) -> None:
    last = run / "checkpoints" / "last.ckpt"
    (line,) = done(capsys, "export", str(last), "--to", "out")
    assert line == "out: Classifier, 610 parameters"
    assert {path.name for path in Path("out").iterdir()} == {"config.json", "model.safetensors"}
    assert_holds(Path("out"), state_of(run, "last"))
    done(capsys, "export", str(run), "--to", "out", "--force")
    assert_holds(Path("out"), state_of(run))


def test_the_mean_of_checkpoints(run: Path, capsys) -> None:
    one, two, three = (Path(shutil.copy(run / "checkpoints" / "best.ckpt", f"{name}.ckpt")) for name in "abc")
    for file, amount in ((two, 0.3), (three, 0.6)):
        state = torch.load(file, weights_only=True)
        for x in state["state_dict"].values():
            x += amount if x.is_floating_point() else int(10 * amount)
        torch.save(state, file)
    # the checkpoints may stand on either side of the option
    lines = done(capsys, "export", str(one), "--average", str(two), str(three), "--to", "mean")
    assert lines[0].startswith("mean of 3 checkpoints: ") and lines[0].endswith("integers are those of c.ckpt")
    mean, first = Classifier.from_pretrained("mean").state_dict(), state_of(run)
    for name, x in mean.items():
        expected = first[name] + (0.3 if x.is_floating_point() else 6)
        assert torch.allclose(x, expected, rtol=0, atol=1e-6), name
    assert json.loads(Path("mean/config.json").read_text())["source"] == {"averaged": ["a.ckpt", "b.ckpt", "c.ckpt"]}
    changed(two, lambda s: s["hyper_parameters"]["network"]["init_args"]["block"]["init_args"].update(dropout=0.5))
    line = refused(["export", "--average", str(one), str(two), "--to", "other"], capsys)
    assert "a.ckpt has another network than b.ckpt: their settings differ" in line and not Path("other").exists()


def test_a_language_model_keeps_its_tokenizer_and_is_averaged_only_with_the_same(tmp_path: Path, capsys) -> None:
    files = []
    for name in ("abcdefg", "gfedcba"):
        (tmp_path / name).mkdir()
        files.append(checkpoint(tmp_path / name, CharacterTokenizer(name), tie_embeddings=True))
    done(capsys, "export", "--average", files[0], files[0], "--to", str(tmp_path / "mean"))
    assert (tmp_path / "mean" / "vocabulary.json").read_bytes() == CharacterTokenizer("abcdefg").content()
    expected = named_network(files[0]).network(torch.arange(5)[None])  # tied weights are tied still
    assert torch.allclose(LanguageModel.from_pretrained(tmp_path / "mean")(torch.arange(5)[None]), expected, atol=1e-6)
    line = refused(["export", "--average", *files, "--to", str(tmp_path / "no")], capsys)
    assert line == f"{files[0]} has another tokenizer than {files[1]}: a mean of their weights means nothing"
    assert not (tmp_path / "no").exists()
