"""What `--help` shows beyond a command's own options: our classes and the settings of a configuration or a dataset."""

import inspect
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from lra_ssm.cli.command import first_sentence, function_parser
from lra_ssm.cli.datasets import DATASETS


def show_help(command: str, function: Callable[..., Any], arguments: Sequence[str]) -> None:
    """Print the help of a command.

    For `fit` it includes the settings of a configuration, for `prepare` those of the dataset in the arguments.
    """
    parser: Any = function_parser(f"lra-ssm {command}", function)
    if command == "fit":
        from lra_ssm.cli.config import add_sections

        parser.usage = "lightning fit --config FILE [--config …] [options]"
        parser.description += f"\n\n{_describe_classes()}"
        add_sections(parser)
    elif command == "prepare" and (name := next((each for each in arguments if each in DATASETS), None)):
        from lra_ssm import datamodules

        cls = getattr(datamodules, DATASETS[name][0])
        parser.usage, parser.description = f"lra-ssm prepare {name} [options]", f"Prepare {name}."
        parser.add_class_arguments(cls, skip={each for each, affects in cls.affects.items() if affects != "data"})
    parser.print_help()


def _describe_classes() -> str:
    """Return a table of the classes that may be called by their short names."""
    from lra_ssm.cli.merge import CHOICES

    columns = max(60, shutil.get_terminal_size((100, 40)).columns)
    widths = max(map(len, CHOICES)), max(len(cls.__name__) for classes in CHOICES.values() for cls in classes)
    lines = ["Our classes by their names; your own by their path, module.Class:"]
    for option, classes in CHOICES.items():
        for cls in classes:
            left = f"  {option if cls is classes[0] else '':<{widths[0]}}  {cls.__name__:<{widths[1]}}  "
            # A data module or a layer has its own file, whose docstring says more.
            of_a_file = option in ("--data", "--model.network.layer")
            about = first_sentence(inspect.getdoc(inspect.getmodule(cls) if of_a_file else cls) or "")
            about = about.replace(" as a LightningDataModule", "").removeprefix(f"{cls.__name__}, ")
            lines.append(textwrap.fill(about, columns, initial_indent=left, subsequent_indent=" " * len(left)))
    lines.append("`….help CLASS` explains a class: --data.help Text, --model.network.layer.help S6")
    return "\n".join(lines)
