"""What `--help` of fit, validate, test and predict shows: our classes, then the options; Lightning's in short."""

import inspect
import re
import shutil
import textwrap
from argparse import SUPPRESS
from typing import Any

from jsonargparse import DefaultHelpFormatter

from lra_ssm import datamodules, layers, models, tasks
from lra_ssm.cli import COMMANDS

# Option -> classes of ours that it takes, by their short names. Importing them here is what makes the names known.
CHOICES: dict[str, tuple[type, ...]] = {
    "--data": tuple(getattr(datamodules, name) for name in datamodules.__all__),
    "--model": (tasks.Classification, tasks.Regression, tasks.LanguageModelling, tasks.MaskedModelling),
    "--model.network": (
        models.Classifier, models.DualEncoder, models.Regressor, models.LanguageModel,
    ),
    "--model.network.layer": (
        layers.S4D, layers.S6, layers.B2S6, layers.StableSSM, layers.LRU, layers.DeepLinearSSM,
        layers.LocalConvolution,
        layers.S5, layers.SSD, layers.Attention,
    ),
    "--model.network.block": (
        layers.S4Block, layers.S5Block, layers.MambaBlock, layers.Mamba2Block, layers.HyenaBlock,
        layers.TransformerBlock,
    ),
    "--model.network.embedding": (models.ScalarEmbedding, models.PositionEmbedding, models.FeaturePositionEmbedding),
    "--model.network.pooling": (models.MeanPooling, models.FirstPooling, models.LastPooling, models.MaxPooling),
    "--model.network.head": (
        models.LinearHead, models.MLPHead, models.NLIHead, models.LRAPairHead, models.LogitPairHead,
    ),
}  # fmt: skip


def describe(parser: Any, command: str) -> None:
    """Give a command's parser its usage, its description with every class of ours, and its examples."""
    scores = command != "fit"
    parser.usage = f"lightning {command} {'NAME_OR_RUN | ' if scores else ''}--config FILE [--config …] [options]"
    width = max(60, shutil.get_terminal_size((100, 40)).columns)
    about = COMMANDS[command][1]
    lines = [f"{about[0].upper()}{about[1:]}.", "", "Our classes by their names; your own by their path, module.Class:"]
    longest = max(len(option) for option in CHOICES), max(len(c.__name__) for kinds in CHOICES.values() for c in kinds)
    for option, classes in CHOICES.items():
        for cls in classes:
            shown = option if cls is classes[0] else ""
            left = f"  {shown:<{longest[0]}}  {cls.__name__:<{longest[1]}}  "
            under = " " * len(left)
            lines.append(textwrap.fill(_about(option, cls), width, initial_indent=left, subsequent_indent=under))
    lines += ["`….help CLASS` explains a class: --data.help Text, --model.network.layer.help S6", ""]
    lines += _FURTHER[command]
    parser.description = "\n".join(lines)
    parser.epilog = f"example: lightning {command} --config quickstart"
    if scores:
        parser.epilog += f"\na run, or a saved model: lightning {command} NAME_OR_RUN [--trust module.Class]"


_FLAGS = [
    "--config FILE        a YAML file, or a name of `lra-ssm configs`; the later over the earlier",
    "--print_config       print the whole configuration, and do nothing",
]
_SCORING = ["--allow-pickle       read a saved model's weights from a pickle, only tensors"]
_FURTHER = {
    "fit": [
        *_FLAGS,
        "--fresh              start <run_id>-2, -3, … next to a finished run",
        "--strict-resume      refuse to resume a run with other code",
        "--allow-pickle       read the weights of --init_from from a pickle, only tensors",
        "--estimate [GPU]     print what a step costs and how long the run takes; train nothing",
    ],
    "validate": [*_FLAGS, *_SCORING],
    "test": [*_FLAGS, *_SCORING],
    "predict": [
        *_FLAGS,
        *_SCORING,
        "--split SPLIT        train, val or test; default: what the data module says, val for ours",
        "--output FILE        a CSV file; default: predictions-<split>.csv in the run's directory",
    ],
}


def _about(option: str, cls: type) -> str:
    """The first sentence on a class, or on its file if it has one of its own."""
    of_a_file = option in ("--data", "--model.network.layer")
    text = _sentence(inspect.getdoc(inspect.getmodule(cls) if of_a_file else cls) or "")
    return text.replace(" as a LightningDataModule", "").removeprefix(f"{cls.__name__}, ")


class Help(DefaultHelpFormatter):
    """Without the names of every module of torch, and without the whole documentation of the Trainer."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)

    def _expand_help(self, action: Any) -> str:
        text = re.sub(r", known subclasses: ([^)]*)", "", super()._expand_help(action))
        if action.dest.startswith("trainer."):
            said, _, kind = text.rpartition(" (type: ")
            text = f"{_sentence(said)} (type: {kind}" if said else text
        return text

    def add_argument(self, action: Any) -> None:
        whole = type(action).__name__ == "_ActionConfigLoad"  # --trainer FILE; --config takes every section
        if not (whole or action.dest.endswith(".help") or action.help == SUPPRESS):
            super().add_argument(action)


def _sentence(text: str) -> str:
    return re.split(r"(?<!al\.)(?<=[.?])\s", " ".join(text.split()), maxsplit=1)[0]
