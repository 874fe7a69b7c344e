import io
import json
import os
import random
import tarfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lra_ssm.datamodules.text.module import Text
from lra_ssm.datamodules.text.reader import HUB

from lra_ssm.datamodules.fetch import imdb
from lra_ssm.datamodules.fetch.download import RemoteFile
from lra_ssm.datamodules.fetch.download_note import DownloadNote, write_note
from lra_ssm.datamodules.old_storage.format import open_prepared
from lra_ssm.datamodules.old_storage.vocabulary import EOS_ID, SPECIALS
from lra_ssm.datamodules.text import reader as text_files
from lra_ssm.errors import InputError
from lra_ssm.files import sha256
from tests.datamodules.helpers import contents
from tests.datamodules.language.hub_server import serving_hub

WORDS = 'a bad "good" film, isn\'t it? <br /> Überraschung naïve 映画 \U0001f3ac'.split(" ")


def some_reviews(seed: int = 0, count: int = 20) -> dict[str, str]:
    """Contents by path below aclImdb: as many of each class and split."""
    source = random.Random(seed)
    return {
        f"{split}/{name}/{number}_{rating}.txt": " ".join(source.choices(WORDS, k=source.randint(1, 30)))
        for split in ("train", "test")
        for name, rating in (("neg", 3), ("pos", 9))
        for number in range(count)
    }


def write_folder(folder: Path, reviews: dict[str, str]) -> Path:
    for name, text in reviews.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder


def write_archive(path: Path, reviews: dict[str, str], extra: dict[str, bytes] | None = None) -> Path:
    """In a random order, with what else stands in archives."""
    members = {f"aclImdb/{name}": text.encode() for name, text in reviews.items()}
    members |= {
        "aclImdb/README": b"about",
        "aclImdb/imdb.vocab": b"the",
        "aclImdb/train/unsup/0_0.txt": b"without a label",
        "aclImdb/train/pos/._0_9.txt": b"\xff\xfe of macOS",
        "__MACOSX/aclImdb/train/pos/0_9.txt": b"\xff\xfe of macOS",
        "aclImdb/train/urls_pos.txt": b"http",
    } | (extra or {})
    names = list(members)
    random.Random(1).shuffle(names)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(members[name])
            archive.addfile(info, io.BytesIO(members[name]))
    return path


def prepared(root: Path, **settings: object) -> Text:
    data = Text(root=str(root), **({"min_freq": 1} | settings))  # type: ignore[arg-type]
    data.prepare_data()
    data.setup()
    return data


def texts(data: Text, name: str) -> list[str]:
    split, vocabulary = open_prepared(data.prepared_folder, verify=True).split(name), data.manifest()["vocabulary"]
    sequences = [split.sequence(index).tolist() for index in range(len(split))]  # type: ignore[union-attr]
    assert all(sequence[-1] == EOS_ID and EOS_ID not in sequence[:-1] for sequence in sequences)
    return ["".join(vocabulary[token] for token in sequence[:-1]) for sequence in sequences]


def arrays(data: Text) -> dict[str, bytes]:
    return {name: value for name, value in contents(data.prepared_folder).items() if name.endswith(".npy")}


# -- reading -------------------------------------------------------------------------------------------------------


def test_layouts_and_orders_make_no_difference(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reviews = some_reviews()
    root = tmp_path / "root"
    for place in ("", "imdb", "text"):
        write_folder(tmp_path / f"folder-{place}" / place / "aclImdb", reviews)
        write_archive(tmp_path / f"archive-{place}" / place / "aclImdb_v1.tar.gz", reviews)
    write_archive(tmp_path / "fetched/text/download/aclImdb_v1.tar.gz", reviews)
    roots = sorted(path for path in tmp_path.iterdir() if path != root)
    all_data = [prepared(path) for path in roots]
    said = [record.getMessage() for record in caplog.records if "published" in record.getMessage()]
    assert len(said) == len(roots) and "'train': 40" in said[0] and "\n" not in said[0]
    root.mkdir()
    for source in ("folder-", "folder-/aclImdb", "archive-/aclImdb_v1.tar.gz"):
        all_data.append(prepared(root, source=str(tmp_path / source)))
        assert all_data[-1].prepared_folder.name.startswith("files-")
    assert all(arrays(data) == arrays(all_data[0]) for data in all_data)
    source = all_data[0].manifest()["source"]
    assert source["kind"] == "original" and source["form"] == "archive" and source["digest"] == "unknown"
    assert "36 train, 4 val, 40 test" in all_data[0].describe()
    assert source["inputs"] == "characters" and source["counts"] == {"train": 40, "test": 40}
    assert not source["published_counts"]
    assert len({json.dumps(data.manifest()["source"]["content_sha256"]) for data in all_data}) == 1


def test_sorted_by_name_and_read_as_it_stands(tmp_path: Path) -> None:
    reviews = {f"{split}/{name}/0_1.txt": "x" for split in ("train", "test") for name in ("neg", "pos")}
    reviews |= {"train/neg/10_1.txt": '"a\tb"\r\n', "train/neg/9_1.txt": "", "train/pos/3_9.txt": "\ufeffñ"}
    write_folder(tmp_path / "aclImdb", reviews)
    (tmp_path / "aclImdb/train/pos/._3_9.txt").write_bytes(b"\xff")
    train = text_files.read(text_files.find_at(tmp_path))["train"]
    assert train.texts == ["x", '"a\tb"\r\n', "", "x", "\ufeffñ"] and train.labels == [0, 0, 0, 1, 1]
    assert sorted(texts(prepared(tmp_path, validation="test"), "train")) == sorted(train.texts)


@pytest.mark.parametrize("settings", [{}, {"validation": "test"}, {"limit": 30}, {"inputs": "bytes"}])
def test_the_first_batch_of_every_split_has_both_classes(tmp_path: Path, settings: dict[str, object]) -> None:
    write_folder(tmp_path / "aclImdb", some_reviews(count=100))
    data = prepared(tmp_path, batch_size=10, **settings)
    whole = open_prepared(data.prepared_folder)
    for name in ("train", "val", "test"):
        labels = whole.split(name).labels
        assert set(labels[:10].tolist()) == {0, 1} and (np.diff(labels) != 0).sum() > len(labels) / 4


def test_vocabulary_is_of_the_cut_training_texts(tmp_path: Path) -> None:
    reviews = {"train/neg/0_1.txt": "aaab", "train/neg/1_1.txt": "abz", "train/pos/0_9.txt": "aac", "test/neg/0_1": ""}
    reviews |= {"test/neg/0_1.txt": "qaq", "test/pos/0_9.txt": "bc"}
    write_folder(tmp_path / "aclImdb", reviews)
    data = prepared(tmp_path, max_length=3, min_freq=1, validation="test")
    assert data.manifest()["vocabulary"] == [*SPECIALS, "a", "b"]
    assert sorted(texts(data, "train")) == ["aa", "aa", "ab"] and sorted(texts(data, "test")) == ["<unk>a", "b<unk>"]
    assert prepared(tmp_path, max_length=3, min_freq=2, validation="test").manifest()["vocabulary"] == [*SPECIALS, "a"]
    whole = prepared(tmp_path, min_freq=2, validation="test").manifest()
    assert whole["vocabulary"] == [*SPECIALS, "a", "b"] and whole["splits"]["train"]["length"]["max"] == 5


def test_bytes_of_the_original_code(tmp_path: Path) -> None:
    write_folder(tmp_path / "aclImdb", some_reviews(count=3) | {"test/neg/0_3.txt": "é" * 30, "test/neg/1_3.txt": ""})
    data = prepared(tmp_path, inputs="bytes", max_length=15)
    test = open_prepared(data.prepared_folder).split("test")
    sequences = [test.sequence(index).tolist() for index in range(len(test))]  # type: ignore[union-attr]
    assert [0xC4, 0xAA] * 7 + [0xC4] in sequences and [0] in sequences
    manifest = data.manifest()
    assert manifest["source"]["inputs"] == "bytes" and len(manifest["vocabulary"]) == 257
    assert "min_freq" not in manifest["source"]
    assert data.prepared_folder == Text(root=str(tmp_path), inputs="bytes", max_length=15, min_freq=3).prepared_folder
    characters = prepared(tmp_path)
    for key in ("held_out_sha256", "content_sha256"):
        assert characters.manifest()["source"][key] == manifest["source"][key]


# -- splits --------------------------------------------------------------------------------------------------------


def test_held_out_reviews(tmp_path: Path) -> None:
    reviews = some_reviews() | {f"train/neg/{i}_3.txt": "the same review" for i in (4, 8, 13)}
    write_folder(tmp_path / "aclImdb", reviews)
    everything = texts(prepared(tmp_path, validation="test"), "train")
    digests = set()
    for seed in (0, 1, 2):
        data = prepared(tmp_path, val_fraction=0.2, split_seed=seed)
        train, val = texts(data, "train"), texts(data, "val")
        assert sorted(train + val) == sorted(everything) and len(val) == 8
        assert data.manifest()["splits"]["val"]["class_counts"] == [4, 4]
        assert ("the same review" in train) + ("the same review" in val) == 1
        source = data.manifest()["source"]
        assert (source["validation"], source["val_fraction"], source["split_seed"]) == ("held_out", 0.2, seed)
        digests.add(source["held_out_sha256"])
    assert len(digests) == 3
    again = Text(root=str(tmp_path), min_freq=1, val_fraction=0.2, split_seed=2)
    assert again.prepared_folder == data.prepared_folder


def test_validation_on_the_test_set_is_a_named_setting(tmp_path: Path) -> None:
    write_folder(tmp_path / "aclImdb", some_reviews())
    data = prepared(tmp_path, validation="test")
    files = arrays(data)
    assert all(files[f"val_{key}.npy"] == files[f"test_{key}.npy"] for key in ("tokens", "offsets", "labels"))
    assert data.manifest()["splits"]["train"]["examples"] == 40
    source = data.manifest()["source"]
    assert source["validation"] == "test" and "split_seed" not in source
    other = Text(root=str(tmp_path), min_freq=1, validation="test", split_seed=7, val_fraction=0.3)
    assert other.prepared_folder == data.prepared_folder != prepared(tmp_path).prepared_folder


def test_limit_is_balanced_and_keeps_the_vocabulary(tmp_path: Path) -> None:
    write_folder(tmp_path / "aclImdb", some_reviews())
    whole, some = prepared(tmp_path), prepared(tmp_path, limit=11)
    splits = some.manifest()["splits"]
    assert [splits[name]["class_counts"] for name in ("train", "val", "test")] == [[5, 6], [2, 2], [5, 6]]
    assert some.manifest()["vocabulary"] == whole.manifest()["vocabulary"]
    assert set(texts(some, "train")) <= set(texts(whole, "train"))
    assert some.manifest()["source"]["limit"] == 11 and "limit" not in whole.manifest()["source"]
    assert texts(some, "train") != texts(whole, "train")[:11]


# -- Hugging Face --------------------------------------------------------------------------------------------------


def rows(reviews: dict[str, str], split: str) -> dict[str, list[object]]:
    """In another order than by name."""
    names = sorted((name for name in reviews if name.startswith(f"{split}/")), key=lambda name: name[::-1])
    return {"text": [reviews[name] for name in names], "label": [int("/pos/" in name) for name in names]}


def test_folders_of_the_datasets_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    reviews = some_reviews()
    splits = {split: datasets.Dataset.from_dict(rows(reviews, split)) for split in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "hub/plain_text").mkdir(parents=True)
    for split, dataset in splits.items():
        dataset.to_parquet(str(tmp_path / f"hub/plain_text/{split}-00000-of-00001.parquet"))
    dataset.to_parquet(str(tmp_path / "hub/plain_text/unsupervised-00000-of-00001.parquet"))
    root = tmp_path / "root"
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    files = {str(path.relative_to(tmp_path / "hub")): path.read_bytes() for path in tmp_path.glob("hub/*/*.parquet")}
    with pytest.raises(InputError, match="no copy of the Hub's.*lra-ssm prepare text .*--source=huggingface") as error:
        Text(root=str(root), source="huggingface").prepare_data()
    assert "\n" not in str(error.value) and not root.exists()
    with serving_hub(files, monkeypatch, HUB) as server:
        Text(root=str(root), source="huggingface").fetch()
        Text(root=str(root), source="huggingface").fetch()
        assert server.asked == ["listing", *(f"plain_text/{name}-00000-of-00001.parquet" for name in ("test", "train"))]
    assert [path.name for path in (root / "text/download").iterdir()] == [Path(HUB.below).name]
    hub = prepared(root, source="huggingface")
    saved, parquet = (prepared(root, source=str(tmp_path / name)) for name in ("saved", "hub"))
    assert arrays(hub) == arrays(saved) == arrays(parquet)
    assert hub.manifest()["source"]["revision"] == HUB.revision and hub.manifest()["source"]["kind"] == "huggingface"
    original = prepared(root, source=str(write_folder(tmp_path / "aclImdb", reviews)))
    assert arrays(original) == arrays(hub)  # the order of the files is another, what is written is the same
    for key in ("held_out_sha256", "content_sha256"):
        assert original.manifest()["source"][key] == hub.manifest()["source"][key]
    assert original.manifest()["vocabulary"] == hub.manifest()["vocabulary"]
    assert not (tmp_path / "cache").exists()  # no second copy
    # What an older version kept as `datasets` saves it.
    older = tmp_path / "older"
    datasets.DatasetDict(splits).save_to_disk(str(older / HUB.below))
    Text(root=str(older), source="huggingface").fetch()  # nothing to do
    assert arrays(prepared(older, source="huggingface")) == arrays(hub)


def test_bad_rows(tmp_path: Path) -> None:
    import datasets

    good = rows(some_reviews(), "train")
    for number, (change, message) in enumerate(
        (
            ({"label": [-1] * 40}, r"train row 0: has text .* and label -1; expected is 0 or 1"),
            ({"text": [None] * 40}, r"train row 0: has text None and"),
            ({"label": [1] * 40}, r"train does not hold reviews of both classes"),
        )
    ):
        folder = tmp_path / str(number)
        split = datasets.Dataset.from_dict(good | change)
        datasets.DatasetDict({"train": split, "test": split}).save_to_disk(str(folder))
        with pytest.raises(InputError, match=message):
            Text(root=str(tmp_path / "root"), source=str(folder)).prepare_data()
    datasets.DatasetDict({"train": split.rename_column("text", "review")}).save_to_disk(str(tmp_path / "columns"))
    with pytest.raises(InputError, match="cannot be read as a dataset of the Hub \\(.*text"):
        Text(root=str(tmp_path / "root"), source=str(tmp_path / "columns")).prepare_data()
    (tmp_path / "damaged").mkdir()
    for name in ("train", "test"):
        (tmp_path / f"damaged/{name}.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"damaged: cannot be read as a dataset of the Hub"):
        Text(root=str(tmp_path / "root"), source=str(tmp_path / "damaged")).prepare_data()


# -- errors --------------------------------------------------------------------------------------------------------


def test_a_fit_never_downloads_and_prepare_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    asked = []

    def download(file: RemoteFile, folder: Path) -> None:
        asked.append(file.urls[0])
        if len(asked) == 1:
            raise InputError("no network")
        write_archive(folder / file.name, some_reviews())

    monkeypatch.setattr(imdb, "download", download)
    data = Text(root=str(root))
    with pytest.raises(InputError, match=r"no IMDb reviews .*`lra-ssm prepare text --root=.*root` downloads") as error:
        data.prepare_data()
    assert "\n" not in str(error.value) and not asked and not root.exists()
    with pytest.raises(InputError, match="no network"):
        data.fetch()
    assert not root.exists()
    data.fetch()
    data.fetch()
    data.prepare_data()
    assert asked == ["https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"] * 2
    Text(root=str(root), source=str(root / "text/download")[:-1]).fetch()  # nothing to fetch for a path


def test_missing_and_damaged(tmp_path: Path) -> None:
    root = tmp_path / "root"

    def message(source: Path | str) -> str:
        with pytest.raises(InputError) as error:
            Text(root=str(root), source=str(source)).prepare_data()
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "neither original, huggingface nor an existing path" in message(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "holds no IMDb reviews; give an archive or" in message(tmp_path / "empty")
    reviews = some_reviews()
    without = {name: text for name, text in reviews.items() if not name.startswith("test/pos")}
    assert "no reviews in test/pos; expected aclImdb/" in message(write_archive(tmp_path / "a.tar.gz", without))
    twice = write_archive(tmp_path / "b.tar.gz", reviews, {"copy/train/pos/0_9.txt": b"again"})
    assert "train/pos/0_9.txt: is there twice" in message(twice)
    latin = write_archive(tmp_path / "c.tar.gz", reviews, {"aclImdb/train/pos/99_9.txt": b"caf\xe9 au lait"})
    assert "aclImdb/train/pos/99_9.txt:1: is not UTF-8 (byte 0xe9 at 3)" in message(latin)
    (write_folder(tmp_path / "aclImdb", reviews) / "train/pos/99_9.txt").write_bytes(b"caf\xe9")
    assert "aclImdb/train/pos/99_9.txt:1: is not UTF-8 (byte 0xe9 at 3)" in message(tmp_path / "aclImdb")
    truncated = tmp_path / "d.tar.gz"
    truncated.write_bytes((tmp_path / "c.tar.gz").read_bytes()[:-200])
    assert "d.tar.gz" in message(truncated)
    assert not root.exists()


def test_odd_files_among_reviews(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "aclImdb", some_reviews())
    odd = folder / "train/pos/x.txt"
    for make, reason in ((lambda: odd.symlink_to("gone"), "No such file"), (odd.mkdir, "Is a directory")):
        make()
        with pytest.raises(InputError, match=rf"train/pos/x\.txt: cannot be read \({reason}") as error:
            prepared(tmp_path)
        assert "\n" not in str(error.value)
        odd.unlink() if odd.is_symlink() else odd.rmdir()
    assert [path.name for path in tmp_path.iterdir()] == ["aclImdb"]


def test_no_room_and_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "aclImdb", some_reviews(count=2))
    with pytest.raises(InputError, match="val_fraction 0.99: leaves no training review of one class"):
        prepared(tmp_path, val_fraction=0.99)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(InputError, match="preparing Text needs .* make room"):
        prepared(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["aclImdb"]


def test_the_archives_address_is_in_the_manifest(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "text/download/aclImdb_v1.tar.gz", some_reviews())
    record = DownloadNote("https://x.org/a", archive.stat().st_size, sha256(archive), "unknown")
    write_note(archive, record)
    source = prepared(tmp_path).manifest()["source"]
    assert {key: source[key] for key in asdict(record)} == asdict(record)
    write_archive(archive, some_reviews(seed=1))  # somebody's own
    assert prepared(tmp_path, max_length=9).manifest()["source"]["url"] is None


@pytest.mark.trials
def test_the_real_reviews(tmp_path: Path) -> None:
    folder = os.environ.get("LRA_SSM_TEST_DATA")
    archive = Path(folder or "", "aclImdb-labelled.tar.gz")
    if not folder or not archive.is_file():
        pytest.skip("LRA_SSM_TEST_DATA does not name a folder with aclImdb-labelled.tar.gz")
    data = prepared(tmp_path, source=str(archive), min_freq=15)
    manifest = data.manifest()
    assert manifest["source"]["published_counts"] and len(manifest["vocabulary"]) == 134
    classes = {name: split["class_counts"] for name, split in manifest["splits"].items()}
    assert classes == {"train": [11_250] * 2, "val": [1_250] * 2, "test": [12_500] * 2}
    digest = "f4e63962b273d605700af645a30e794e6587fe94cc5591acb5d07a9ba4109fc7"
    assert manifest["source"]["held_out_sha256"] == digest
    assert not set(texts(data, "train")) & set(texts(data, "val"))  # copies of a review are on one side
    whole = prepared(tmp_path, source=str(archive), min_freq=15, max_length=20_000, validation="test").manifest()
    length = whole["splits"]["train"]["length"]
    assert length["max"] == 13_704 + 1 and abs(length["mean"] - 1 - 1325.07) < 0.01
    assert len(whole["vocabulary"]) == 136 and whole["vocabulary"][3:6] == [" ", "e", "t"]
