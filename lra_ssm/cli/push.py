"""`lra-ssm push`: a trained run as a saved model with its card, in a folder, on the Hub, or on wandb."""

import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import one_reason

DESCRIPTION = """\
Shares what a run has trained: a saved model with its tokenizer, the run's config.yaml, and a model card with its data,
settings, figures and how to repeat it. Runs not finished or not tested are refused unless told, a NaN always.

DESTINATION is a folder (./models/s4d), a repository of the Hub (owner/name, or hf://owner/name; created where it is
missing; the token is huggingface_hub's: HF_TOKEN, or `hf auth login`), or wandb:entity/project/name."""

EXAMPLE = """\
examples:
  lra-ssm push runs/mnist/s4d/38722f686f ./models/s4d --license=apache-2.0
  lra-ssm push runs/mnist/s4d/38722f686f me/s4d-mnist --private
  lra-ssm push runs/mnist/s4d/38722f686f lab/s4d-mnist --pull-request
  lra-ssm push runs/mnist/s4d/38722f686f wandb:me/lra/s4d-mnist
"""


def parser() -> PlainParser:
    made = PlainParser("lra-ssm push", DESCRIPTION, EXAMPLE)
    made.add_argument("run", metavar="RUN", help="a run's directory")
    made.add_argument("destination", metavar="DESTINATION", help="a folder, owner/name, or wandb:entity/project/name")
    made.add_argument("--last", action="store_true", help="last.ckpt instead of best.ckpt")
    said = "the weights' licence, by the Hub's names; default: none is stated"
    made.add_argument("--license", metavar="NAME", help=said)
    made.add_argument("--unfinished", action="store_true", help="also a run that is not finished, or not tested")
    made.add_argument("--force", action="store_true", help="replace a model that is in the folder")
    made.add_argument("--private", action="store_true", help="a repository that is created is private")
    made.add_argument("--revision", metavar="BRANCH", help="of the repository; default: main")
    made.add_argument("--pull-request", action="store_true", help="open a pull request on the repository instead")
    made.add_argument("--message", metavar="TEXT", help="of the commit; default: the run's name")
    return made


def main(command: str, arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    from lra_ssm.cli.export import check_destination
    from lra_ssm.cli.named_network import find, named_network
    from lra_ssm.cli.run_facts import check_shareable
    from lra_ssm.runs.record import RunRecord

    kind, destination = _destination(options)
    found = find(options.run)
    if found.run is None:
        raise InputError(f"{options.run}: is no run's directory; lra-ssm export takes a .ckpt alone")
    file = found.run / "checkpoints" / ("last.ckpt" if options.last else "best.ckpt")
    if not file.is_file():
        remedy = "" if options.last else ": --last pushes its last.ckpt"
        raise InputError(f"{found.run} has no {file.name}{remedy}")
    if kind == "folder":
        check_destination(Path(destination), options.force)
    run = RunRecord.read(found.run)
    check_shareable(run, file, options.unfinished)
    model = named_network(str(file))
    if kind == "folder":
        use = _write(Path(destination), destination, run, file, model, options.license)
        print(squeeze(f"{destination}{use(destination)}"))
        return 0
    with tempfile.TemporaryDirectory(prefix="lra_ssm-push-") as temporary:
        folder = Path(temporary) / "model"
        use = _write(folder, destination, run, file, model, options.license)
        message = options.message or run.name
        if kind == "hub":
            said = _to_hub(folder, destination, message, options, use)
        else:
            said = _to_wandb(folder, destination, run, use)
    print(squeeze(said))
    return 0


def _destination(options: Any) -> tuple[str, str]:
    """ "folder", "hub" or "wandb", and what it is called. Raises InputError for what could be two of them."""
    from lra_ssm.checkpoints.sources import HUB, WANDB, is_repository

    given: str = options.destination
    if given.startswith(WANDB):
        kind, given = "wandb", given.removeprefix(WANDB)
        if not re.fullmatch(r"([\w.-]+/)?[\w.-]+/[\w.-]+", given):
            raise InputError(f"wandb:{given}: give wandb:entity/project/name, or wandb:project/name")
    elif given.startswith(HUB):
        kind, given = "hub", given.removeprefix(HUB)
    elif given.count("/") == 1 and is_repository(given) and not given.startswith("."):
        owner = given.partition("/")[0]
        if Path(owner).is_dir():
            doubt = f"a folder in {owner}, or a repository of the Hub?"
            raise InputError(f"{given}: {doubt} give ./{given}, or {HUB}{given}")
        kind = "hub"
    else:
        kind = "folder"
    if kind == "hub" and (given.count("/") != 1 or not is_repository(given)):
        raise InputError(f"{given}: a repository of the Hub is owner/name")
    of_hub = {"--private": options.private, "--revision": options.revision, "--pull-request": options.pull_request}
    for name, value in of_hub.items():
        if value and kind != "hub":
            raise InputError(f"{name} is for a repository of the Hub; {options.destination} is a {kind}")
    if options.pull_request and options.revision not in (None, "main"):
        raise InputError("--pull-request goes to the main branch: leave --revision out")
    return kind, given


def _write(folder: Path, name: str, run: Any, file: Path, model: Any, license: str | None) -> Callable[[str], str]:
    """The saved model with its card. Returns what tells the command that it is used with, given its name."""
    from lra_ssm.checkpoints import RUN_CONFIG, check_finite
    from lra_ssm.checkpoints.card import commands, model_card
    from lra_ssm.checkpoints.layout import CARD
    from lra_ssm.cli.language_models import tokenizer_of
    from lra_ssm.cli.run_facts import facts, portable
    from lra_ssm.models import save_network
    from lra_ssm.models.pretrained import import_paths, is_known

    state = model.network.state_dict()
    check_finite(state, str(file))
    source = facts(run, file, model.step, model.parameters)
    if foreign := {path for path in import_paths(model.specification) if not is_known(path)}:
        source["foreign"] = sorted(foreign)
    if license:
        source["license"] = license
    config = yaml.safe_dump(portable(run.config), sort_keys=False)
    tokenizer = tokenizer_of(file)
    card = model_card(name, model.specification, source, license, tokenizer is not None)
    beside = {RUN_CONFIG: config.encode(), CARD: card.encode()}
    save_network(folder, model.specification, state, tokenizer, source, beside=beside)

    def use(name: str) -> str:
        known = commands(name, model.specification, source, tokenizer is not None)
        return f": use it with {known[0]}" if known else ""

    return use


def _to_hub(folder: Path, repository: str, message: str, options: Any, use: Callable[[str], str]) -> str:
    """One commit on a repository; files of an older model go with it."""
    from huggingface_hub import HfApi, errors

    from lra_ssm.checkpoints.layout import PICKLE, REPLACED

    api, public = HfApi(), False
    try:
        with suppress(errors.RepositoryNotFoundError):
            public = options.private and not api.model_info(repository).private
        if public:
            raise InputError(f"{repository} exists and is public: change that on its page, or leave --private out")
        api.create_repo(repository, private=options.private or None, exist_ok=True)
        if options.revision not in (None, "main"):
            api.create_branch(repository, branch=options.revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message=message,
            revision=options.revision,
            create_pr=options.pull_request,
            delete_patterns=[*REPLACED, PICKLE],
        )
    except InputError:
        raise
    except Exception as error:  # huggingface_hub's, the Hub's answer, the network's
        raise InputError(f"{repository}: cannot be pushed ({one_reason(error)})") from error
    if commit.pr_url:
        return f"{commit.pr_url}: {commit.oid[:12]}"
    return f"{commit.commit_url}{use(f'{repository}@{commit.oid}')}"


def _to_wandb(folder: Path, given: str, run: Any, use: Callable[[str], str]) -> str:
    """An artifact of type model, logged by the wandb run of the training."""
    import wandb

    from lra_ssm.checkpoints import CONFIG
    from lra_ssm.checkpoints.files import read_json

    *project, name = given.split("/")
    known = run.record.get("wandb") or {}
    try:
        logged = wandb.init(
            entity=project[0] if len(project) > 1 else None,
            project=project[-1],
            id=known.get("id") or run.path.resolve().name,
            name=run.name,
            resume="allow",
            reinit="create_new",  # beside one of this process that is not finished
            job_type="push",
            dir=str(run.path.resolve()),  # wandb's own process may have begun in another folder
            settings=wandb.Settings(silent=True, console="off"),
        )
        try:  # not `with`, which prints a traceback and marks the training's run as failed
            source = read_json(folder / CONFIG, CONFIG)["source"]
            artifact = wandb.Artifact(name, type="model", metadata=source)
            artifact.add_dir(str(folder), skip_cache=True)
            logged.log_artifact(artifact)
            offline = logged.offline
            if not offline:
                artifact.wait()
        finally:
            logged.finish()
    except Exception as error:  # wandb's, its server's, the network's
        raise InputError(f"wandb:{given}: cannot be pushed ({one_reason(error)})") from error
    if offline:
        return f"kept in {run.path / 'wandb'} (WANDB_MODE=offline): wandb sync sends it"
    place = f"wandb:{'/'.join(project)}/{name}:{artifact.version}"
    return f"{place}{use(place)}"
