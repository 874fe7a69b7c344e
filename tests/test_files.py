"""Errors about files name them; that they are written whole or not at all: test_disk_full.py."""

import errno
import json
import os

import pytest

from lra_ssm.errors import describe_error
from lra_ssm.files import UNFINISHED, naming_file, replacing, write_json


def test_what_json_has_no_type_for_is_written_as_text(tmp_path):
    write_json(tmp_path / "a.json", {"a": tmp_path})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": str(tmp_path)}


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
