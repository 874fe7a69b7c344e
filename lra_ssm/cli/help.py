"""What `--help` of the run commands shows: our classes, then the options, Lightning's briefly."""

import inspect
import re
import shutil
import textwrap
from argparse import SUPPRESS
from collections.abc import Iterable
from typing import Any

from jsonargparse import DefaultHelpFormatter

from lra_ssm import datamodules, layers, models, tasks

# Option -> classes of ours that it takes, by their short names. Importing them here is what makes the names known.
CHOICES: dict[str, tuple[type, ...]] = {
    "--data": tuple(getattr(datamodules, name) for name in datamodules.__all__),
    "--model": (tasks.Classification, tasks.Regression, tasks.LanguageModelling),
    "--model.network": (
        models.Classifier, models.DualEncoder, models.Regressor, models.LanguageModel,
    ),
    "--model.network.layer": (
        layers.S4D, layers.S6, layers.B2S6, layers.StableSSM, layers.LRU, layers.DeepLinearSSM,
        layers.S5, layers.SSD, layers.Attention,
    ),
    "--model.network.block": (
        layers.S4Block, layers.S5Block, layers.MambaBlock, layers.Mamba2Block, layers.HyenaBlock,
        layers.TransformerBlock,
    ),
    "--model.network.embedding": (models.ScalarEmbedding, models.PositionEmbedding),
    "--model.network.pooling": (models.MeanPooling, models.FirstPooling, models.LastPooling, models.MaxPooling),
    "--model.network.head": (
        models.LinearHead, models.MLPHead, models.NLIHead, models.LRAPairHead, models.LogitPairHead,
    ),
}  # fmt: skip
_OPTIONS = max(len(option) for option in CHOICES)
_NAMES = max(len(cls.__name__) for classes in CHOICES.values() for cls in classes)

# Key of the configuration -> the title of its options; jsonargparse would take a docstring.
TITLES = {"trainer": "Trainer (Lightning's own; its documentation says more)", "model": "Model", "data": "Data"}
_NOT_OURS = ("weights_only", "verbose", "return_predictions")  # arguments of Lightning's methods that we set
_CKPT_PATH = "best, last, or a file; default: last.ckpt of a run that is resumed, best.ckpt of one that is scored"


def description(what: str) -> str:
    """What a command does, and every class of ours that its options take, with the first sentence on each."""
    width = max(60, shutil.get_terminal_size((100, 40)).columns)
    lines = [f"{what[0].upper()}{what[1:]}.\n\nOur classes by their names; your own by their path, module.Class:"]
    for option, classes in CHOICES.items():
        shown = option
        for cls in classes:
            left = f"  {shown:<{_OPTIONS}}  {cls.__name__:<{_NAMES}}  "
            under = " " * len(left)
            lines.append(textwrap.fill(_about(option, cls), width, initial_indent=left, subsequent_indent=under))
            shown = ""
    lines.append("Each is explained by .help, behind a --config: --data.help Text, --model.network.layer.help S6")
    return "\n".join(lines)


def _about(option: str, cls: type) -> str:
    """The first sentence on a class, or on its file where it has one of its own."""
    has_a_file = option in ("--data", "--model.network.layer")
    text = inspect.getdoc(inspect.getmodule(cls) if has_a_file else cls)
    said = _sentence(text or "").replace(" as a LightningDataModule", "")
    return said if option == "--data" else said.removeprefix(f"{cls.__name__}, ")


class Help(DefaultHelpFormatter):
    """Without the names of every module of torch, and without the whole documentation of the Trainer.

    explained: the option that was asked with .help, --model.network.layer; jsonargparse shows its last part alone.
    """

    explained = ""

    def _as_typed(self, text: str) -> str:
        head, _, last = self.explained.rpartition(".")
        return text.replace(f"--{last}.", f"{head}.{last}.") if head else text

    def _format_action_invocation(self, action: Any) -> str:
        return self._as_typed(super()._format_action_invocation(action))

    def add_usage(self, usage: Any, actions: Iterable[Any], groups: Iterable[Any], prefix: Any = None) -> None:
        prog = self._prog
        if " " not in prog:  # the explanation of a class
            return
        if command := re.search(r"\[options\] (\w+)$", prog):
            named = "" if command[1] == "fit" else "NAME_OR_RUN | "
            prog = f"lightning {command[1]} {named}--config FILE"
        if usage is not SUPPRESS:
            usage = f"{prog} [options]"
        super().add_usage(usage, actions, groups, prefix)

    def add_argument(self, action: Any) -> None:
        if action.dest == "ckpt_path":  # Lightning's text names keywords that a run directory does not have
            action.help = _CKPT_PATH
        if action.dest not in _NOT_OURS:
            super().add_argument(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        text = self._as_typed(text)
        return text if "\n" in text else super()._fill_text(text, width, indent)

    def _expand_help(self, action: Any) -> str:
        text = super()._expand_help(action)
        text = re.sub(r", known subclasses: ([^)]*)", _ours, text)
        if action.dest.startswith("trainer."):
            said, _, kind = text.rpartition(" (type: ")
            text = f"{_sentence(said)} (type: {kind}" if said else text
        return text


def _ours(found: re.Match[str]) -> str:
    """Of the classes that an option takes the user's own and ours, by their names."""
    others = ("torch.", "lightning.", "torchmetrics.")
    paths = [path for path in found[1].split(", ") if not path.startswith(others)]
    names = {path.rpartition(".")[2] for path in paths}
    public = sorted(name for name in names if not name.startswith("_"))
    return f", among them {', '.join(public)}" if 0 < len(public) < 12 else ""


def _sentence(text: str) -> str:
    one_line = " ".join(text.split())
    return re.split(r"(?<!al\.)(?<=[.?])\s", one_line, maxsplit=1)[0]
