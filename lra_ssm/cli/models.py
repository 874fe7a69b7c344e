"""`lra-ssm pull`, `push` and `export` fetch, share and write saved models."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lra_ssm.errors import InputError, describe_error, to_one_line

if TYPE_CHECKING:
    from torch import Tensor

    from lra_ssm.cli.find_model import NamedNetwork
    from lra_ssm.runs.record import RunRecord


def _check_destination(folder: Path, force: bool) -> None:
    if (folder / "config.json").is_file() and not force:
        raise InputError(f"{folder} already holds a model: --force replaces it")


# --- pull ---


def pull(
    name: str | None = None,
    *,
    to: Path | None = None,
    force: bool = False,
    trust: list[str] = [],  # noqa: B006
    allow_pickle: bool = False,
    list: bool = False,
) -> int:
    """Fetch a saved model and verify it: its digests, and that its network can be built and has exactly these weights.

    NAME is a model that comes with lra_ssm, a repository of the Hub (owner/name, or owner/name@revision with a branch,
    tag or commit; endpoint, token and cache are huggingface_hub's: HF_ENDPOINT, HF_TOKEN, HF_HOME), an artifact
    (wandb:entity/project/name:version), or a folder. Every command that takes a model takes these names.

    Args:
        name: the model; none with --list
        to: also write it into this folder, whole or not at all
        force: replace a model in that folder
        list: show the known names; needs no network

    Examples:
        lra-ssm pull --list
        lra-ssm pull state-spaces/mamba-130m-hf
        lra-ssm pull me/s4d-mnist@v1 --to ./models/s4d
        lra-ssm pull wandb:me/lra/s4d-mnist:v0
    """
    if list and name is None:
        print(_known_models())
        return 0
    if name is None or list:
        raise InputError("give the name of a model, or --list, which shows the known names")
    from rich.filesize import decimal

    from lra_ssm.checkpoints import ModelFiles
    from lra_ssm.checkpoints.write import atomic_folder
    from lra_ssm.models.pretrained import check_pretrained

    if to is not None:
        _check_destination(to, force)
    files = ModelFiles(name)
    paths = files.verify(allow_pickle)
    cls = check_pretrained(files, allow_pickle, trust).__name__
    if to is not None:
        with atomic_folder(to) as folder:
            for file, path in paths.items():
                shutil.copyfile(path, folder / file)
    size = decimal(sum(path.stat().st_size for path in paths.values()))
    print(to_one_line(f"{files.name}: {cls}, {len(paths)} files, {size}"))
    print(to_one_line(str(to or files.folder)))
    flags = ["--allow-pickle"] * allow_pickle + [f"--trust {path}" for path in trust]
    arguments = " ".join([shlex.quote(str(to or name)), *flags])
    if cls == "LanguageModel":
        print(to_one_line(f'use it: lra-ssm generate {arguments} --prompt "The"'))
    elif "config.yaml" in paths:
        print(to_one_line(f"use it: lra-ssm test {arguments}"))
    else:
        print(to_one_line(f'use it: {cls}.from_pretrained("{to or name}")'))
    return 0


def _known_models() -> str:
    """Return a table of the models that come with the package, and the known names on the Hub."""
    from rich.filesize import decimal

    from lra_ssm.checkpoints import card, sources
    from lra_ssm.checkpoints.files import get_nested, read_json
    from lra_ssm.tables import table, terminal_width

    rows = []
    for name in sources.shipped():
        source = get_nested(read_json(sources.SHIPPED / name / sources.CONFIG, name), "source")
        task = get_nested(source, "data").get("dataset", "")
        size = decimal((sources.SHIPPED / name / sources.WEIGHTS).stat().st_size)
        score = card.headline(get_nested(source, "metrics", "test")).removeprefix("test/")
        rows.append((name, task, score, f"{source.get('parameters', 0):,}", size))
    columns = ("name", "task", "stated", "parameters", "size")
    return f"{table(columns, rows, left=3, width=terminal_width())}\n\n{_ON_HUB}"


_ON_HUB = """on the Hub, trained on the Pile:
  state-spaces/mamba-{130m,370m,790m,1.4b,2.8b}-hf
  state-spaces/mamba-{130m,370m,790m,1.4b,2.8b}    with --tokenizer=EleutherAI/gpt-neox-20b --allow-pickle
  state-spaces/mamba2-{130m,370m,780m,1.3b,2.7b}   with --tokenizer=EleutherAI/gpt-neox-20b --allow-pickle"""


# --- export ---


def export(
    *checkpoints: str,
    to: Path,
    average: bool = False,
    format: Literal["lra_ssm", "hf"] = "lra_ssm",
    force: bool = False,
) -> int:
    """Write the network of a Lightning checkpoint as a saved model.

    A saved model is a folder with config.json, model.safetensors and the tokenizer, if there is one. from_pretrained
    and the commands that take a model read it. With --average it is the mean of several checkpoints of one network.
    `lra-ssm push` adds the run's config, its figures and a card.

    Args:
        checkpoints: a run's directory (its best.ckpt, else its last.ckpt) or a .ckpt; several with --average
        to: the folder of the saved model
        average: write the mean of several checkpoints
        format: lra_ssm, or hf for what transformers' MambaForCausalLM or Mamba2ForCausalLM loads
        force: replace a saved model in that folder

    Examples:
        lra-ssm export runs/mnist/s4d/38722f686f --to saved/s4d
        lra-ssm export runs/lm/quickstart/38722f686f/checkpoints/last.ckpt --to saved/lm --format=hf
        lra-ssm export --average a/best.ckpt b/best.ckpt c/best.ckpt --to saved/mean
    """
    if not checkpoints or average != (len(checkpoints) > 1):
        raise InputError("give a run's directory or a .ckpt, or several and --average")
    from lra_ssm.checkpoints import check_finite
    from lra_ssm.cli.find_model import find, named_network
    from lra_ssm.models import save_network

    _check_destination(to, force)
    files = [find(name).file for name in checkpoints]
    model = named_network(str(files[-1]))
    source: dict[str, Any] = {"checkpoint": str(files[0]), "step": model.step}
    if average:
        print(to_one_line(_average(model, files)))
        source = {"averaged": [str(file) for file in files]}
    state = model.network.state_dict()
    check_finite(state, "their mean" if average else files[0].name)
    save_network(to, model.specification, state, model.tokenizer, source, format)
    print(to_one_line(f"{to}: {type(model.network).__name__}, {model.parameters:,} parameters"))
    return 0


def _average(model: NamedNetwork, files: Sequence[Path]) -> str:
    """Load the mean of all files' weights, summed in float64, into the last file's network; return a line about it.

    Integers (counts of batches) stay the last file's. Raises InputError if the networks or their tokenizers differ.
    """
    import torch

    from lra_ssm.cli.find_model import named_network

    def to_wide(x: Tensor) -> Tensor:
        return x.to(torch.complex128 if x.is_complex() else torch.float64)

    last = model.network.state_dict()
    means = {n: to_wide(x) / len(files) for n, x in last.items() if x.is_floating_point() or x.is_complex()}
    for file in files[:-1]:
        other = named_network(str(file))
        if other.specification != model.specification:
            raise InputError(f"{file} has another network than {files[-1]}: their settings differ")
        tokenizers = {(each.digest, each.end_of_text) for each in (other.tokenizer, model.tokenizer) if each}
        if len(tokenizers) > 1:
            raise InputError(f"{file} has another tokenizer than {files[-1]}: a mean of their weights means nothing")
        state = other.network.state_dict()
        for name in means:
            means[name] += to_wide(state[name]) / len(files)
    model.network.load_state_dict(last | means)
    return f"mean of {len(files)} checkpoints: {len(means)} of {len(last)} tensors; integers are those of {files[-1]}"


# --- push ---


def push(
    run: str,
    destination: str,
    *,
    last: bool = False,
    license: str | None = None,
    unfinished: bool = False,
    force: bool = False,
    private: bool = False,
) -> int:
    """Share what a run has trained: a saved model, the run's config.yaml, and a model card.

    The card has the data, the settings, the figures and how to repeat them. A run that is not finished or not tested is
    refused unless --unfinished is given; a NaN always is.

    DESTINATION is a folder (./models/s4d), a repository of the Hub (owner/name, or hf://owner/name; created if it does
    not exist; the token is huggingface_hub's: HF_TOKEN, or `hf auth login`), or wandb:entity/project/name. For a branch
    or a pull request, push to a folder and give it to huggingface_hub's `hf upload`.

    Args:
        run: a run's directory
        destination: a folder, owner/name, or wandb:entity/project/name
        last: push last.ckpt instead of best.ckpt
        license: license of the weights, by its name on the Hub; default: the card names no license
        unfinished: push a run that is not finished or not tested, too
        force: replace a model in the folder
        private: if the repository is created, make it private

    Examples:
        lra-ssm push runs/mnist/s4d/38722f686f ./models/s4d --license=apache-2.0
        lra-ssm push runs/mnist/s4d/38722f686f me/s4d-mnist --private
        lra-ssm push runs/mnist/s4d/38722f686f wandb:me/lra/s4d-mnist
    """
    import tempfile

    from lra_ssm.cli.find_model import find, named_network
    from lra_ssm.cli.model_provenance import check_shareable
    from lra_ssm.runs.record import RunRecord

    kind, name = _parse_destination(destination)
    if private and kind != "hub":
        raise InputError(f"--private is for a repository of the Hub; {destination} is a {kind}")
    checkpoint = find(run)
    if checkpoint.run is None:
        raise InputError(f"{run} is not a run's directory; `lra-ssm export` takes a .ckpt")
    file = checkpoint.run / "checkpoints" / ("last.ckpt" if last else "best.ckpt")
    if not file.is_file():
        raise InputError(f"{checkpoint.run} has no {file.name}{'' if last else ': --last pushes its last.ckpt'}")
    if kind == "folder":
        _check_destination(Path(name), force)
    record = RunRecord.read(checkpoint.run)
    if not unfinished:
        check_shareable(record, file)
    model = named_network(str(file))
    with tempfile.TemporaryDirectory(prefix="lra_ssm-push-") as temporary:
        folder = Path(name) if kind == "folder" else Path(temporary) / "model"
        names = {"folder": destination, "hub": name, "wandb": f"wandb:{name}:latest"}
        command = _write(folder, names[kind], record, file, model, license)
        if kind == "hub":
            address = _to_hub(folder, name, f"{record.experiment}/{record.path.resolve().name}", private)
        elif kind == "wandb":
            address = _to_wandb(folder, name, record)
        else:
            address = destination
    print(to_one_line(f"{address}: use it with {command}" if command else address))
    return 0


def _parse_destination(destination: str) -> tuple[Literal["folder", "hub", "wandb"], str]:
    """Return the kind of a destination and its name there, by the rules that find a model by its name."""
    from lra_ssm.checkpoints.sources import HUB, WANDB, is_local, is_repository

    if destination.startswith(WANDB):
        name = destination.removeprefix(WANDB)
        if name.count("/") not in (1, 2):
            raise InputError(f"{destination}: give wandb:entity/project/name, or wandb:project/name")
        return "wandb", name
    name = destination.removeprefix(HUB)
    if destination.startswith(HUB) or "/" in name and is_repository(name) and not is_local(name):
        return "hub", name
    return "folder", destination


def _write(folder: Path, name: str, run: RunRecord, file: Path, model: NamedNetwork, license: str | None) -> str:
    """Write the saved model with its card; return the command that uses it, if there is one."""
    import yaml

    from lra_ssm.checkpoints import RUN_CONFIG, check_finite
    from lra_ssm.checkpoints.card import model_card, usage
    from lra_ssm.checkpoints.sources import CARD
    from lra_ssm.cli.model_provenance import portable, provenance
    from lra_ssm.models import save_network
    from lra_ssm.models.pretrained import import_paths, is_known

    state, tokenizer = model.network.state_dict(), model.tokenizer
    check_finite(state, str(file))
    source = provenance(run, file, model)
    if foreign := {path for path in import_paths(model.specification) if not is_known(path)}:
        source["foreign"] = sorted(foreign)
    if license:
        source["license"] = license
    about = (name, model.specification, source, tokenizer is not None)
    config = yaml.safe_dump(portable(run.config), sort_keys=False)
    other_files = {RUN_CONFIG: config.encode(), CARD: model_card(*about).encode()}
    save_network(folder, model.specification, state, tokenizer, source, other_files=other_files)
    return next(iter(usage(*about)), "")


def _to_hub(folder: Path, repository: str, message: str, private: bool) -> str:
    """Make one commit on a repository, which also removes the files of an older model; return its address."""
    from huggingface_hub import HfApi

    from lra_ssm.checkpoints.sources import PICKLE
    from lra_ssm.checkpoints.write import REPLACED

    try:
        HfApi().create_repo(repository, private=private or None, exist_ok=True)
        commit = HfApi().upload_folder(
            repo_id=repository, folder_path=folder, commit_message=message, delete_patterns=[*REPLACED, PICKLE]
        )
    except Exception as error:  # of huggingface_hub, the Hub or the network
        raise InputError(f"{repository}: cannot be pushed ({describe_error(error)})") from error
    return str(commit.commit_url)


def _to_wandb(folder: Path, name: str, run: RunRecord) -> str:
    """Log an artifact of type model in the wandb run of the training; return its name."""
    import wandb

    *project, artifact = name.split("/")
    try:
        logged = wandb.init(
            entity=project[0] if len(project) > 1 else None,
            project=project[-1],
            id=(run.record.get("wandb") or {}).get("id") or run.path.resolve().name,
            resume="allow",
            reinit="create_new",  # allows a second unfinished run in this process
            job_type="push",
            dir=str(run.path.resolve()),
            settings=wandb.Settings(silent=True, console="off"),
        )
        try:  # not `with`, which marks the training's run as failed on an error
            logged.log_model(str(folder), artifact)
        finally:
            logged.finish()  # waits until the files are sent
    except Exception as error:  # of wandb, its server or the network
        raise InputError(f"wandb:{name}: cannot be pushed ({describe_error(error)})") from error
    if logged.offline:
        return f"kept in {run.path / 'wandb'} (WANDB_MODE=offline) until `wandb sync` sends it"
    return f"wandb:{name}:latest"
