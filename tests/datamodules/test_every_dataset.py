"""What is true of every dataset: settings, constructors, stages, loaders."""

import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest

from lra_ssm import datamodules as dm
from lra_ssm.datamodules.pretraining import Pretraining
from lra_ssm.errors import InputError
from tests.datamodules.helpers import Tiny, prepared
from tests.datamodules.language.helpers import MadeUp

INVALID: dict[Any, dict[str, list[Any]]] = {
    dm.Image: {"limit": [0], "inputs": ["s5"]},
    dm.ListOps: {"length_bounds": [(50, 50), (10, 11), (0, 10), (3, 3000)], "max_args": [1]},
    dm.Pathfinder: {"resolution": [48], "difficulty": ["hard"], "num_images": [9], "inputs": ["x"], "split": ["x"]},
    dm.Retrieval: {"inputs": ["words"]},
    dm.SCIFAR: {"std": [(0.2, 0.2), (0.2, 0.2, 0)], "resolution": [4]},
    dm.StateTracking: {"length": [0], "test_length": [0]},
    dm.Text: {"validation": ["train"]},
    dm.MNIST: {"batch_size": [0], "eval_batch_size": [0], "num_workers": [-1], "std": [0], "permutation": ["x"]},
    Pretraining: {"share": [0.0, 1.0], "span": [0]},
}  # fmt: skip
SLIDING = "sliding evaluation needs one from 1 to length, 8"
# The first setting is the one that is named.
NOT_TOGETHER: list[tuple[Any, dict[str, Any], str]] = [
    (dm.WikiText, {"documents": "line"}, "line is for other tokenizers: 'words' ends every line"),
    (MadeUp, {"length": 0}, "must be at least 1"),
    (MadeUp, {"order": "random"}, "must be one of shuffled, streams"),
    *((MadeUp, {"eval_stride": stride, "evaluation": "sliding"}, SLIDING) for stride in (9, 0, None)),
    (MadeUp, {"eval_stride": 4}, "is only for sliding evaluation, not 'windows'"),
    (MadeUp, {"end_of_text": "x"}, "is only for a tokenizer.json"),
    (dm.MQAR, {"length": 63}, "must be even"),
    (dm.MQAR, {"length": 8}, "must be even, and at least 16 without num_pairs"),
    (dm.MQAR, {"length": 64, "num_pairs": 17}, "must be at least 68"),
    (dm.MQAR, {"vocab_size": 8}, "must be even and at least 10 for 4 pairs"),
    (dm.MQAR, {"test_length": 3}, "must be even"),
    (dm.AssociativeRecall, {"length": 7}, "must be even and at least 2"),
    (dm.AssociativeRecall, {"vocab_size": 3}, "must be at least 4"),
    (dm.TeacherStudent, {"eigenvalues": [[0.5, 1.0]]}, "must be inside the unit circle"),
    (dm.TeacherStudent, {"B": [[1.0]]}, "must have a number for each of the eigenvalues, by layer"),
    (dm.CorrelatedNoise, {"correlation": 1.0}, "must be between -1 and 1"),
    (dm.NoisyCosines, {"length": 58}, "must be more than twice the highest frequency, 29"),
]
ALONE = [(cls, {name: x}, "") for cls, named in INVALID.items() for name, values in named.items() for x in values]


@pytest.mark.parametrize(("cls", "settings", "message"), [*ALONE, *NOT_TOGETHER])
def test_an_invalid_setting_is_named_in_one_line(cls: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        cls(**settings)
    line = str(error.value)
    assert re.match(rf"({cls.__name__} |pretrain\.){next(iter(settings))} ", line), line
    assert message in line and "\n" not in line


@pytest.mark.parametrize("module", [dm.Corpus, dm.Image, dm.ListOps, dm.Pathfinder, dm.Text, dm.MNIST])
def test_a_source_that_is_not_there(here: Path, module: Any) -> None:  # which an empty source would name
    (here / "file").touch()
    for source in ("", " ", "absent", "file/x"):
        with pytest.raises(InputError, match="must be one of .*, or an existing file or folder") as error:
            module(root=str(here / "root"), source=source).prepare_data()
        assert str(error.value).startswith(f"{module.__name__} source") and "\n" not in str(error.value)
    assert not (here / "root").exists()


def opened(tmp_path: Path, **settings: Any) -> Tiny:
    return prepared(Tiny(root=str(tmp_path), batch_size=4, **settings), "fit")


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


def test_a_data_module_is_an_object_and_not_the_value_of_its_settings(tmp_path: Path) -> None:
    one, other = (Tiny(root=str(tmp_path)) for _ in range(2))
    assert len({one, other}) == 2 and one != other and "batch_size" not in repr(one)


def test_samples_and_the_largest_batch(tmp_path: Path) -> None:
    data = opened(tmp_path)
    assert data.sample(3).labels.tolist() == [0, 1, 2] and len(data.sample(30).labels) == 4
    assert data.largest_batch().inputs.shape == (4, 4) and data.train_batches() == len(data.train_dataloader()) == 7
    batch = dm.ListOps(root=str(tmp_path), batch_size=3).largest_batch()
    assert batch.inputs.shape == (3, 2048) and batch.lengths.tolist() == [2048] * 3
    assert dm.Retrieval(root=str(tmp_path)).largest_batch().lengths.shape == (64, 2)
    assert dm.MNIST(root=str(tmp_path)).largest_batch().inputs.shape == (50, 784, 1)
    hidden = dm.Image(root=str(tmp_path), batch_size=2, pretrain=Pretraining(targets="values")).largest_batch()
    assert hidden.inputs.shape == (2, 1024, 2) and hidden.targets.shape == (2, 1024, 1)
    for tokens in (dm.WikiText(root=str(tmp_path), batch_size=3), dm.MQAR(batch_size=3)):
        batch = tokens.largest_batch()
        assert batch.inputs.shape == batch.targets.shape == (3, tokens.length)
        assert (batch.reset is not None) == isinstance(tokens, dm.WikiText)  # which isolates documents


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
