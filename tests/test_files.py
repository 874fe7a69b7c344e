"""Files are written whole or not at all, and errors about them name them."""

import errno
import json
import os

import pytest

from lra_ssm.errors import describe_error
from lra_ssm.files import UNFINISHED, naming_file, replacing, write_json
from tests.runner import everything_below


def test_nothing_half_written_stays(tmp_path):
    target = tmp_path / "a.json"
    target.write_text("before")
    with pytest.raises(RuntimeError), replacing(target) as file:
        file.write("half")
        assert target.read_text() == "before" and len(everything_below(tmp_path)) == 2
        raise RuntimeError
    assert target.read_text() == "before" and everything_below(tmp_path) == ["a.json"]
    write_json(target, {"a": tmp_path})
    assert json.loads(target.read_text()) == {"a": str(tmp_path)} and everything_below(tmp_path) == ["a.json"]
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "no" / "a"):
        raise AssertionError
    assert everything_below(tmp_path) == ["a.json"]


def test_the_error_of_a_disk_names_the_file_and_no_other_error_is_changed(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="another"), naming_file(tmp_path / "a"):
        raise OSError(errno.ENOENT, "no such file", "another")

    def read_only(*_, **__):  # so that the file cannot be removed either
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / f"{UNFINISHED}a"))

    for function in ("replace", "unlink"):
        monkeypatch.setattr(os, function, read_only)
    with pytest.raises(OSError) as error, replacing(tmp_path / "a"):
        pass
    assert describe_error(error.value) == f"{tmp_path / 'a'}: cannot be read or written (Read-only file system)"
