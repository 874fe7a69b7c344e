"""What is true of every dataset, said once: settings, sources, constructors, what its readers import."""

import inspect
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lra_ssm import datamodules
from lra_ssm.datamodules import MNIST, Image, ListOps, Pathfinder, Retrieval, Text
from lra_ssm.errors import InputError

READERS = """cifar10.reader mnist.reader images.transforms listops.builder storage.prepare text.builder
    retrieval.builder fetch.lra_release fetch.hub pathfinder.archive""".split()

BAD_SETTINGS: dict[Any, list[dict[str, Any]]] = {
    Image: [{"split_seed": 1 << 70}, {"split_seed": -1}, {"limit": 0}, {"augment": "crop"}, {"inputs": "s5"}],
    ListOps: [{"length_bounds": (50, 50)}, {"length_bounds": (3, 3000)}, {"num_test": 0}, {"max_depth": 1}],
    Pathfinder: [{"resolution": 48}, {"difficulty": "hard"}, {"num_images": 9}, {"inputs": "x"}, {"split": "x"}],
    Retrieval: [{"inputs": "words"}, {"max_length": 1}, {"min_freq": 0}, {"limit": 0}],
    Text: [{"validation": "train"}, {"val_fraction": 1.0}, {"val_fraction": 0.0}, {"split_seed": -1}, {"min_freq": 0}],
    MNIST: [
        {"batch_size": 0},
        {"eval_batch_size": 0},
        {"num_workers": -1},
        {"std": 0},
        {"std": math.inf},
        {"mean": math.nan},
        {"permutation": "x"},
    ],
}


@pytest.mark.parametrize("module", BAD_SETTINGS)
def test_settings_that_cannot_be_met_are_named(tmp_path: Path, module: Any) -> None:
    for change in BAD_SETTINGS[module]:
        with pytest.raises(InputError, match=next(iter(change))) as error:
            module(root=str(tmp_path), **change)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("module", [MNIST, Image, Text, Retrieval, ListOps, Pathfinder])
def test_sources_that_are_no_path(tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # which an empty source would name
    (tmp_path / "file").touch()
    cases = {
        "": "source '': is empty; give",
        " ": "is empty",
        "x" * 300: "is neither .* nor an existing",
        "absent": "is neither .* nor an existing",
        "file/x": "is neither .* nor an existing",
        "zero\0byte": "is neither",
    }
    for source, said in cases.items():
        with pytest.raises(InputError, match=said) as error:
            module(root=str(tmp_path / "root"), source=source).prepare_data()
        message = str(error.value)
        assert message.startswith(f"{module.__name__} source") and "\n" not in message
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", sorted({*datamodules.__all__} - {"Mixture"}))
def test_constructors_are_fit_for_the_command_line(name: str) -> None:
    parameters = list(inspect.signature(getattr(datamodules, name).__init__).parameters.values())[1:]
    assert all(p.kind is p.KEYWORD_ONLY and p.annotation is not p.empty for p in parameters)


def test_readers_and_generators_load_neither_torch_nor_lightning() -> None:
    code = "\n".join(f"import lra_ssm.datamodules.{name}" for name in READERS)
    code += "\nimport sys\nassert not {'torch', 'lightning', 'datasets', 'pyarrow', 'matplotlib'} & set(sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
