"""What the options of a fit come to, without a model, data or a Trainer being made."""

import json
from pathlib import Path
from typing import Any

from lra_ssm.cli.output import quiet
from lra_ssm.cli.prepared import LOADING
from lra_ssm.cli.run import RunCLI
from lra_ssm.datamodules.base import PreparedDataModule
from lra_ssm.layers.spec import import_object
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.signals import Signals


class Configured(RunCLI):
    """The options of `lra-ssm fit`, read and checked.

    Raises InputError as fit does for what its options say; not for what is wrong with files or data.
    """

    path: Path  # of the run

    def __init__(self, options: list[str]) -> None:
        quiet()
        super().__init__(["fit", *options], [], Signals())

    def _set_seed(self) -> None:
        """Nothing is drawn."""

    def before_instantiate_classes(self) -> None:
        config = self._config
        run_id, *former = self.resolve()
        self.path = RunDirectory.find(config.runs_dir, config.experiment, run_id, config.fresh, former).path

    def instantiate_classes(self) -> None:
        """Nothing is made."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing is run."""

    @property
    def data_settings(self) -> dict[str, Any]:
        """The data's settings that decide what is prepared."""
        return {k: v for k, v in self.resolved["data"].get("init_args", {}).items() if k not in LOADING}

    @property
    def stored_data(self) -> str:
        """Of runs on the same prepared data the same text; empty where nothing is prepared."""
        data = self.resolved["data"]
        if not (data and issubclass(import_object(data["class_path"]), PreparedDataModule)):
            return ""
        return json.dumps([data["class_path"], self.data_settings], sort_keys=True)

    def data(self) -> Any:
        """The data module; None where the model loads its own data."""
        data = self.resolved["data"]
        return import_object(data["class_path"])(**data.get("init_args", {})) if data else None
