"""`lra-ssm pull`, `push` and `export`: saved models fetched, shared and written."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lra_ssm.errors import InputError, to_one_line
from lra_ssm.files import one_reason

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
        trust: a class of other packages that the model, or its data, may be made with; may be repeated
        allow_pickle: read weights that are a pickle (only tensors)
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
    found = files.fetch(allow_pickle)
    cls = check_pretrained(files, allow_pickle, trust).__name__
    if to is not None:
        with atomic_folder(to) as folder:
            for file, path in found.items():
                shutil.copyfile(path, folder / file)
    print(
        to_one_line(
            f"{files.name}: {cls}, {len(found)} files, {decimal(sum(p.stat().st_size for p in found.values()))}"
        )
    )
    print(to_one_line(str(to or found["config.json"].parent)))
    flags = ["--allow-pickle"] * allow_pickle + [f"--trust {path}" for path in trust]
    given = " ".join([shlex.quote(str(to or name)), *flags])
    if cls == "LanguageModel":
        print(to_one_line(f'use it: lra-ssm generate {given} --prompt "The"'))
    elif "config.yaml" in found:
        print(to_one_line(f"use it: lra-ssm test {given}"))
    else:
        print(to_one_line(f'use it: {cls}.from_pretrained("{to or name}")'))
    return 0


def _known_models() -> str:
    """The models that come with the package, and those on the Hub that are known to be readable, as a table."""
    import yaml
    from rich.filesize import decimal

    from lra_ssm.checkpoints import card, sources
    from lra_ssm.checkpoints.files import get_nested, read_json
    from lra_ssm.tables import table, terminal_width

    rows = []
    for name in sources.shipped():
        source = get_nested(read_json(sources.SHIPPED / name / sources.CONFIG, name), "source")
        task = get_nested(source, "data").get("dataset", "") + ", lossy pixels" * card.is_lossy(source)
        size = decimal((sources.SHIPPED / name / sources.WEIGHTS).stat().st_size)
        score = card.headline(get_nested(source, "metrics", "test")).removeprefix("test/")
        rows.append((name, task, score, "shipped", f"{source.get('parameters', 0):,}", size))
    for name, entry in yaml.safe_load(Path(sources.__file__).with_name("known.yaml").read_bytes()).items():
        count, note = entry["parameters"], "a pickle" if entry.get("pickle") else ""
        rows.append((name, entry["task"], "", note, f"{count:,}", decimal(4 * count)))
    return table(("name", "task", "stated", "", "parameters", "size"), rows, left=4, width=terminal_width())


# --- export ---


def export(
    *checkpoints: str,
    to: Path | None = None,
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
    if to is None:
        raise InputError("--to is missing: the folder of the saved model")
    if not checkpoints:
        raise InputError("give a run's directory, or a .ckpt")
    if average != (len(checkpoints) > 1):
        raise InputError("--average needs several checkpoints" if average else "several checkpoints need --average")
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
    """Give the network of the last file the mean of all, summed in float64; return what was done, in one line.

    Integers (counts of batches) stay the last file's. Raises InputError if the networks or their tokenizers differ.
    """
    import torch

    from lra_ssm.cli.find_model import load_network, tokenizer_of

    def wide(x: Tensor) -> Tensor:
        return x.to(torch.complex128 if x.is_complex() else torch.float64)

    last = model.network.state_dict()
    means = {n: wide(x) / len(files) for n, x in last.items() if x.is_floating_point() or x.is_complex()}
    tokenizer = model.tokenizer
    for file in files[:-1]:
        network, specification, _ = load_network(file)
        if specification != model.specification:
            raise InputError(f"{file} has another network than {files[-1]}: their settings differ")
        own = tokenizer_of(file)
        if own and tokenizer and (own.digest, own.end_of_text) != (tokenizer.digest, tokenizer.end_of_text):
            raise InputError(f"{file} has another tokenizer than {files[-1]}: a mean of their weights means nothing")
        state = network.state_dict()
        for name in means:
            means[name] += wide(state[name]) / len(files)
    model.network.load_state_dict(last | means)
    statistics = [name for name in means if name.endswith(("running_mean", "running_var"))]
    line = f"mean of {len(files)} checkpoints: {len(means)} tensors"
    if statistics:
        line += f", {len(statistics)} of them running statistics of batch norm (not what the averaged network measures)"
    if integers := len(last) - len(means):
        line += f"; the {integers} integers are those of {files[-1]}"
    return line


# --- push ---


class _Destination(NamedTuple):
    kind: Literal["folder", "hub", "wandb"]
    name: str


def push(
    run: str,
    destination: str,
    *,
    last: bool = False,
    license: str | None = None,
    unfinished: bool = False,
    force: bool = False,
    private: bool = False,
    revision: str | None = None,
    pull_request: bool = False,
) -> int:
    """Share what a run has trained: a saved model, the run's config.yaml, and a model card.

    The card has the data, the settings, the figures and how to repeat them. A run that is not finished or not tested is
    refused unless --unfinished is given; a NaN always is.

    DESTINATION is a folder (./models/s4d), a repository of the Hub (owner/name, or hf://owner/name; created if it does
    not exist; the token is huggingface_hub's: HF_TOKEN, or `hf auth login`), or wandb:entity/project/name.

    Args:
        run: a run's directory
        destination: a folder, owner/name, or wandb:entity/project/name
        last: last.ckpt instead of best.ckpt
        license: of the weights, by the Hub's names; default: none is stated
        unfinished: also a run that is not finished, or not tested
        force: replace a model in the folder
        private: a repository that is created is private
        revision: a branch of the repository; default: main
        pull_request: open a pull request on the repository instead

    Examples:
        lra-ssm push runs/mnist/s4d/38722f686f ./models/s4d --license=apache-2.0
        lra-ssm push runs/mnist/s4d/38722f686f me/s4d-mnist --private
        lra-ssm push runs/mnist/s4d/38722f686f lab/s4d-mnist --pull-request
        lra-ssm push runs/mnist/s4d/38722f686f wandb:me/lra/s4d-mnist
    """
    import tempfile

    from lra_ssm.cli.find_model import find, named_network
    from lra_ssm.cli.model_provenance import check_shareable
    from lra_ssm.runs.record import RunRecord

    kind, name = _parse_destination(destination)
    of_hub = {"--private": private, "--revision": revision, "--pull-request": pull_request}
    if kind != "hub" and (given := [option for option, value in of_hub.items() if value]):
        raise InputError(f"{given[0]} is for a repository of the Hub; {destination} is a {kind}")
    found = find(run)
    if found.run is None:
        raise InputError(f"{run} is not a run's directory; `lra-ssm export` takes a .ckpt")
    file = found.run / "checkpoints" / ("last.ckpt" if last else "best.ckpt")
    if not file.is_file():
        raise InputError(f"{found.run} has no {file.name}{'' if last else ': --last pushes its last.ckpt'}")
    if kind == "folder":
        _check_destination(Path(name), force)
    record = RunRecord.read(found.run)
    if not unfinished:
        check_shareable(record, file)
    model = named_network(str(file))
    with tempfile.TemporaryDirectory(prefix="lra_ssm-push-") as temporary:
        folder = Path(name) if kind == "folder" else Path(temporary) / "model"
        at = f"@{revision}" if revision else ""
        names = {"folder": destination, "hub": f"{name}{at}", "wandb": f"wandb:{name}:latest"}
        use = _write(folder, names[kind], record, file, model, license)
        if kind == "hub":
            message = f"{record.experiment}/{record.path.resolve().name}"
            place = _to_hub(folder, name, message, private, revision, pull_request)
        elif kind == "wandb":
            place = _to_wandb(folder, name, record)
        else:
            place = destination
    print(to_one_line(f"{place}: use it with {use}" if use else place))
    return 0


def _parse_destination(given: str) -> _Destination:
    """Raises InputError for what could be two of them."""
    from lra_ssm.checkpoints.sources import HUB, WANDB, is_repository

    if given.startswith(WANDB):
        name = given.removeprefix(WANDB)
        if not re.fullmatch(r"([\w.-]+/)?[\w.-]+/[\w.-]+", name):
            raise InputError(f"{given}: give wandb:entity/project/name, or wandb:project/name")
        return _Destination("wandb", name)
    name = given.removeprefix(HUB)
    if not given.startswith(HUB) and (given.count("/") != 1 or given.startswith(".") or not is_repository(given)):
        return _Destination("folder", given)
    if name.count("/") != 1 or not is_repository(name):
        raise InputError(f"{given}: a repository of the Hub is owner/name")
    owner = name.partition("/")[0]
    if name == given and Path(owner).is_dir():
        raise InputError(f"{given}: a folder in {owner}, or a repository of the Hub? Give ./{given}, or {HUB}{given}")
    return _Destination("hub", name)


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
    config = yaml.safe_dump(portable(run.config), sort_keys=False)
    card = model_card(name, model.specification, source, license, tokenizer is not None)
    beside = {RUN_CONFIG: config.encode(), CARD: card.encode()}
    save_network(folder, model.specification, state, tokenizer, source, beside=beside)
    return next(iter(usage(name, model.specification, source, tokenizer is not None)), "")


def _to_hub(
    folder: Path, repository: str, message: str, private: bool, revision: str | None, pull_request: bool
) -> str:
    """Make one commit on a repository, which also removes the files of an older model; return its address."""
    from huggingface_hub import HfApi

    from lra_ssm.checkpoints.sources import PICKLE
    from lra_ssm.checkpoints.write import REPLACED

    api = HfApi()
    try:
        api.create_repo(repository, private=private or None, exist_ok=True)
        if revision not in (None, "main") and not pull_request:
            api.create_branch(repository, branch=str(revision), exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message=message,
            revision=revision,
            create_pr=pull_request,
            delete_patterns=[*REPLACED, PICKLE],
        )
    except Exception as error:  # huggingface_hub's, the Hub's answer, the network's
        raise InputError(f"{repository}: cannot be pushed ({one_reason(error)})") from error
    return f"{commit.pr_url} (once it is merged)" if commit.pr_url else str(commit.commit_url)


def _to_wandb(folder: Path, name: str, run: RunRecord) -> str:
    """Log an artifact of type model in the wandb run of the training; return its name."""
    import wandb

    from lra_ssm.checkpoints.files import read_json

    *project, artifact_name = name.split("/")
    try:
        logged = wandb.init(
            entity=project[0] if len(project) > 1 else None,
            project=project[-1],
            id=(run.record.get("wandb") or {}).get("id") or run.path.resolve().name,
            resume="allow",
            reinit="create_new",  # next to one of this process that is not finished
            job_type="push",
            dir=str(run.path.resolve()),
            settings=wandb.Settings(silent=True, console="off"),
        )
        try:  # not `with`, which marks the training's run as failed on an error
            metadata = read_json(folder / "config.json", "config.json")["source"]
            artifact = wandb.Artifact(artifact_name, type="model", metadata=metadata)
            artifact.add_dir(str(folder), skip_cache=True)
            logged.log_artifact(artifact)
            if not logged.offline:
                artifact.wait()
        finally:
            logged.finish()
    except Exception as error:  # wandb's, its server's, the network's
        raise InputError(f"wandb:{name}: cannot be pushed ({one_reason(error)})") from error
    if logged.offline:
        return f"kept in {run.path / 'wandb'} (WANDB_MODE=offline) until `wandb sync` sends it"
    return f"wandb:{'/'.join(project)}/{artifact_name}:{artifact.version}"
