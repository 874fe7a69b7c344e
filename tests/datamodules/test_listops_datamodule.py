import hashlib
import json
import multiprocessing
from pathlib import Path

import pytest
import torch

from lra_ssm.datamodules import ListOps
from lra_ssm.datamodules.listops.trees import VOCABULARY
from lra_ssm.datamodules.storage.format import MANIFEST, open_prepared
from lra_ssm.errors import InputError
from tests.datamodules.helpers import contents, evaluate, words

SMALL = {"length_bounds": (3, 50), "max_depth": 4, "num_train": 300, "num_val": 30, "num_test": 20, "batch_size": 8}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("root"))


@pytest.fixture(scope="module")
def data(root: str) -> ListOps:
    data = ListOps(root=root, **SMALL)  # type: ignore[arg-type]
    data.prepare_data()
    data.setup()
    return data


def test_vocabulary_is_fixed() -> None:
    assert VOCABULARY == tuple("<pad> <unk> <eos> 0 1 2 3 4 5 6 7 8 9 [MIN [MAX [MED [SM ]".split())
    assert (ListOps.vocab_size, ListOps.num_classes, ListOps.vocabulary) == (18, 10, VOCABULARY)


def test_generated_splits_are_disjoint_and_right(data: ListOps) -> None:
    prepared = open_prepared(data.prepared_folder, verify=True)
    seen = set()
    for name, count in (("train", 300), ("val", 30), ("test", 20)):
        split = prepared.split(name)
        assert len(split) == count
        for index in range(count):
            expression = words(split, index)
            assert 3 < len(expression) < 50 and evaluate(expression) == split.labels[index]
            seen.add(tuple(expression))
    assert len(seen) == 350
    assert data.manifest()["source"]["kind"] == "generated" and data.manifest()["source"]["seed"] == 0
    assert "300 train, 30 val, 20 test" in data.describe()


def test_other_settings_have_another_folder(root: str, data: ListOps) -> None:
    folders = {data.prepared_folder}
    for change in (
        {"generator_seed": 1},
        {"max_depth": 5},
        {"max_args": 9},
        {"num_val": 31},
        {"length_bounds": (3, 51)},
    ):
        folders.add(ListOps(root=root, **(SMALL | change)).prepared_folder)  # type: ignore[arg-type]
    assert len(folders) == 6
    for change in ({"batch_size": 4}, {"max_length": 100}, {"shuffle_seed": 3}, {"num_workers": 1}):
        assert ListOps(root=root, **(SMALL | change)).prepared_folder == data.prepared_folder  # type: ignore[arg-type]


def test_what_an_older_version_prepared_is_prepared_anew_beside_it(
    data: ListOps, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = ListOps(root=str(tmp_path), **SMALL)  # type: ignore[arg-type]
    digest = hashlib.sha256(json.dumps(other.content_settings(), sort_keys=True).encode()).hexdigest()
    older = tmp_path / "listops" / f"generated-{digest[:12]}"  # as its folder was called
    older.mkdir(parents=True)
    (older / MANIFEST).write_text('{"format": 1}')
    assert not other.is_prepared()
    other.prepare_data()
    assert contents(other.prepared_folder) == contents(data.prepared_folder) and contents(older).keys() == {MANIFEST}
    assert [record.getMessage() for record in caplog.records] == [
        f"{older}: an older version prepared it; it is prepared anew beside it, so it can be deleted"
    ]
    other.prepare_data()
    assert len(caplog.records) == 1


def test_loaders(data: ListOps) -> None:
    train = data.train_dataloader()
    assert len(train) == 38
    examples = [row for batch in train for row in batch.inputs.tolist()]
    assert len(examples) == 300
    split = open_prepared(data.prepared_folder).split("val")
    position = 0
    for batch in data.val_dataloader():
        for row, length, label in zip(*batch, strict=True):
            assert row[:length].tolist() == split.sequence(position).tolist() and not row[length:].any()
            assert label == split.labels[position]
            position += 1
        assert batch.inputs.shape[1] == batch.lengths.max()
    assert position == 30
    assert sum(len(batch.labels) for batch in data.test_dataloader()) == 20
    assert sum(len(batch.labels) for batch in data.predict_dataloader()) == 30


def test_stages_open_only_their_splits(root: str, data: ListOps) -> None:
    stages = {"fit": {"train", "val"}, "validate": {"val"}, "test": {"test"}, "predict": {"val"}}
    for stage, splits in stages.items():
        fresh = ListOps(root=root, **SMALL)  # type: ignore[arg-type]
        fresh.setup(stage)
        assert set(fresh._datasets) == splits


def test_a_loader_before_its_split_is_open_says_what_to_call(root: str, data: ListOps) -> None:
    fresh = ListOps(root=root, **SMALL)  # type: ignore[arg-type]
    for name, stage in (("train", "fit"), ("val", "fit"), ("test", "test"), ("predict", "fit")):
        with pytest.raises(InputError, match=rf"not open; call prepare_data\(\) and setup\('{stage}'\) first"):
            getattr(fresh, f"{name}_dataloader")()
    with pytest.raises(
        InputError, match="ListOps.setup: unknown stage 'train'; there are fit, validate, test, predict"
    ):
        fresh.setup("train")
    fresh.setup("fit")
    assert fresh.train_batches() == len(fresh.train_dataloader()) > 1


def test_workers_end_with_the_stage(root: str, data: ListOps) -> None:
    others = set(multiprocessing.active_children())  # what another test has started and not yet collected

    def workers() -> set[object]:
        return set(multiprocessing.active_children()) - others

    busy = ListOps(root=root, num_workers=2, **SMALL)  # type: ignore[arg-type]
    busy.setup("fit")
    loaders = busy.train_dataloader(), busy.val_dataloader()
    before = [next(iter(loader)).labels.tolist() for loader in loaders]
    assert len(workers()) == 4
    busy.teardown("fit")
    assert not workers()
    loaders[0].set_epoch(0)
    assert [next(iter(loader)).labels.tolist() for loader in loaders] == before  # another pass starts others
    del loaders  # as Lightning drops the old loaders where it reloads them every epoch
    assert not workers() and not list(busy._loaders)


def test_shuffle_seed(root: str, data: ListOps, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(seed: int | None) -> list[int]:
        data = ListOps(root=root, shuffle_seed=seed, **SMALL)  # type: ignore[arg-type]
        data.setup("fit")
        return next(iter(data.train_dataloader())).inputs.tolist()

    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    assert first(None) == first(0) != first(5)
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    assert first(None) == first(5) and first(0) != first(5)


def test_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not prepared"):
        ListOps(root=str(tmp_path)).setup("fit")
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_where_the_bounds_hold_too_few(tmp_path: Path) -> None:
    data = ListOps(root=str(tmp_path / "root"), length_bounds=(3, 5), max_depth=2, max_args=2, num_train=1000)
    with pytest.raises(InputError, match="turned up"):
        data.prepare_data()
    assert not list(tmp_path.iterdir())


@pytest.mark.trials
def test_the_whole_published_setting(tmp_path: Path) -> None:
    data = ListOps(root=str(tmp_path))
    data.prepare_data()
    splits = data.manifest()["splits"]
    assert [split["examples"] for split in splits.values()] == [96_000, 2_000, 2_000]
    assert [split["arrays"]["tokens"]["sha256"][:16] for split in splits.values()] == [
        "b4362476db98622a",
        "91d8e41d0cda57ae",
        "ff4d1a828ebe8793",
    ]
    train = splits["train"]
    assert abs(train["length"]["mean"] - 1036.5) < 0.01 and train["class_counts"][0] == 16_309
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch.inputs.shape[0] == 32 and batch.inputs.dtype == torch.int64
