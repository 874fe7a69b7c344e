"""What is true of every dataset: settings, sources, constructors, stages, loaders."""

import inspect
import math
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from lra_ssm import datamodules
from lra_ssm.datamodules import MNIST, SCIFAR, Corpus, Image, ListOps, Pathfinder, Retrieval, SlimPajama, Text, WikiText
from lra_ssm.errors import InputError
from tests.datamodules.helpers import Tiny

BAD_SETTINGS: dict[Any, list[dict[str, Any]]] = {
    Image: [{"split_seed": 1 << 70}, {"split_seed": -1}, {"limit": 0}, {"inputs": "s5"}],
    ListOps: [
        {"length_bounds": (50, 50)}, {"length_bounds": (10, 11)}, {"length_bounds": (0, 10)}, {"num_test": 0},
        {"length_bounds": (3, 3000)}, {"max_depth": 1}, {"max_args": 1},
    ],
    Pathfinder: [{"resolution": 48}, {"difficulty": "hard"}, {"num_images": 9}, {"inputs": "x"}, {"split": "x"}],
    Retrieval: [{"inputs": "words"}, {"max_length": 1}, {"min_freq": 0}, {"limit": 0}],
    SCIFAR: [{"std": (0.2, 0.2)}, {"std": (0.2, 0.2, 0)}, {"resolution": 4}],
    Text: [{"validation": "train"}, {"val_fraction": 1.0}, {"val_fraction": 0.0}, {"split_seed": -1}, {"min_freq": 0}],
    MNIST: [
        {"batch_size": 0}, {"eval_batch_size": 0}, {"num_workers": -1}, {"std": 0}, {"std": math.inf},
        {"mean": math.nan}, {"permutation": "x"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("module", BAD_SETTINGS)
def test_invalid_settings_and_sources_are_named(tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in BAD_SETTINGS[module]:
        with pytest.raises(InputError, match=next(iter(change))) as error:
            module(root=str(tmp_path), **change)
        assert "\n" not in str(error.value)
    monkeypatch.chdir(tmp_path)  # which an empty source would name
    (tmp_path / "file").touch()
    for source in ("", " ", "absent", "file/x"):
        with pytest.raises(InputError, match="must be one of .*, or an existing file or folder") as error:
            module(root=str(tmp_path / "root"), source=source).prepare_data()
        assert str(error.value).startswith(f"{module.__name__} source") and "\n" not in str(error.value)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", sorted(datamodules.__all__))
def test_constructors_are_fit_for_the_command_line(name: str) -> None:
    parameters = list(inspect.signature(getattr(datamodules, name).__init__).parameters.values())[1:]
    assert all(p.kind is p.KEYWORD_ONLY and p.annotation is not p.empty for p in parameters)


PUBLISHED = [MNIST, Image, SCIFAR, Text, Retrieval, ListOps, Pathfinder, Corpus, WikiText, SlimPajama]


@pytest.mark.parametrize("module", PUBLISHED)
def test_prepare_downloads_what_each_source_names(tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the pinned address or revision; nothing for a folder of the user's."""
    asked = list[Any]()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, local_dir, **_: asked.append(local_dir.mkdir()))
    for where in ("images", "imdb", "wikitext", "download"):
        monkeypatch.setattr(f"lra_ssm.datamodules.{where}.download", lambda file, root, *_: asked.append(file) or root)
    monkeypatch.setattr("lra_ssm.datamodules.download.unpack", lambda *_: None)
    tokenizer = {"tokenizer": "bytes"} if hasattr(module, "corpus") else {}
    for source in module.sources:
        before = len(asked)
        module(root=str(tmp_path), source=source, **tokenizer).fetch()
        assert (len(asked) > before) == (source != "generated"), source
    before = len(asked)
    module(root=str(tmp_path), source=str(tmp_path), **tokenizer).fetch()
    assert len(asked) == before


def opened(tmp_path: Path, **settings: Any) -> Tiny:
    data = Tiny(root=str(tmp_path), batch_size=4, **settings)
    data.prepare_data()
    data.setup("fit")
    return data


def test_stages_and_loaders_open_only_their_splits(tmp_path: Path) -> None:
    for name in ("train", "val", "test", "predict"):
        with pytest.raises(InputError, match="is not prepared; call prepare_data"):
            getattr(Tiny(root=str(tmp_path)), f"{name}_dataloader")()
    opened(tmp_path)
    for stage, splits in {"fit": {"train", "val"}, "validate": {"val"}, "predict": {"val"}}.items():
        fresh = Tiny(root=str(tmp_path))
        fresh.setup(stage)
        assert set(fresh._datasets) == splits
    with pytest.raises(InputError, match="has no split test; it has train, val"):
        fresh.setup("test")
    assert len(next(iter(Tiny(root=str(tmp_path), batch_size=4).train_dataloader())).labels) == 4


def test_samples_and_the_largest_batch(tmp_path: Path) -> None:
    data = opened(tmp_path)
    assert data.sample(3).labels.tolist() == [0, 1, 2] and len(data.sample(30).labels) == 4
    assert data.largest_batch().inputs.shape == (4, 4) and data.train_batches() == len(data.train_dataloader()) == 7
    batch = ListOps(root=str(tmp_path), batch_size=3).largest_batch()
    assert batch.inputs.shape == (3, 2048) and batch.lengths.tolist() == [2048] * 3
    assert Retrieval(root=str(tmp_path)).largest_batch().lengths.shape == (64, 2)
    assert MNIST(root=str(tmp_path)).largest_batch().inputs.shape == (50, 784, 1)
    tokens = WikiText(root=str(tmp_path), batch_size=3).largest_batch()
    assert tokens.inputs.shape == tokens.reset.shape == (3, 1024)


def test_workers_end_with_the_stage(tmp_path: Path) -> None:
    others = set(multiprocessing.active_children())  # what another test has started and not yet collected

    def workers() -> set[object]:
        return set(multiprocessing.active_children()) - others

    busy = opened(tmp_path, num_workers=2)
    loaders = busy.train_dataloader(), busy.val_dataloader()
    before = [next(iter(loader)).labels.tolist() for loader in loaders]
    assert len(workers()) == 4
    busy.teardown("fit")
    assert not workers()
    loaders[0].set_epoch(0)
    assert [next(iter(loader)).labels.tolist() for loader in loaders] == before  # another pass starts others
    del loaders  # as Lightning drops the old loaders where it reloads them every epoch
    assert not workers() and not list(busy._loaders)


def test_the_shuffle_seed_defaults_to_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(seed: int | None) -> list[int]:
        return next(iter(opened(tmp_path, shuffle_seed=seed).train_dataloader())).labels.tolist()

    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    assert first(None) == first(0) != first(5)
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    assert first(None) == first(5) and first(0) != first(5)
