import copy
import os
import shutil
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

# Several tests run side by side (pytest -n): threads that wait for each other would spin on the other's core. Before
# torch is imported anywhere, the processes that tests start included.
os.environ.setdefault("OMP_NUM_THREADS", "1")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts with &

from tests.runner import FIT, SHORT, only_run, succeed  # noqa: E402


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The test's own folder, as the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with one finished run of tiny.yaml, which no test changes, and what the command printed."""
    folder = tmp_path_factory.mktemp("trained")
    result = succeed([*FIT, *SHORT], folder)
    return folder, result


@pytest.fixture(scope="session")
def tested(trained, tmp_path_factory):
    """A folder with a finished run of tiny.yaml that has only been tested, and its data; to be copied."""
    folder = tmp_path_factory.mktemp("tested")
    shutil.copytree(trained[0], folder, dirs_exist_ok=True)
    succeed(["test", *FIT[1:], *SHORT], folder)
    return folder


@pytest.fixture
def curves():
    """For tests of the picture that a run leaves: the others draw none, it takes a third of a small fit."""


@pytest.fixture(autouse=True)
def _no_curves(request, monkeypatch):
    if "curves" not in request.fixturenames:
        monkeypatch.setattr("lra_ssm.runs.run.draw_curves", lambda *_: None)


@cache
def _options(folder, *arguments):
    from lra_ssm.cli.config import read_fit_options

    return read_fit_options(arguments)


@pytest.fixture
def read_once(monkeypatch):
    """For tests that start the same commands in this process and folder again and again, and change no config between
    them: the options, half of a small fit, are read the first time."""

    def options(arguments):
        known = _options(os.getcwd(), *arguments)
        again = copy.copy(known)
        again.given, again.resolved = known.given.clone(), copy.deepcopy(known.resolved)
        return again

    monkeypatch.setattr("lra_ssm.cli.fit.read_fit_options", options)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """A data root, where what tiny.yaml trains on is prepared once."""
    return tmp_path_factory.mktemp("data") / "root"


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory, data):
    """A fit of tiny.yaml by what ends it."""
    from tests.interrupted import ENDS, Whole, outcome

    @cache
    def of(end: str) -> Whole:
        folder, copies = (tmp_path_factory.mktemp(name) for name in ("uninterrupted", "copies"))
        with mock.patch.dict(os.environ, COPY_TO=str(copies)):
            succeed([*FIT, f"--data.root={data}", *ENDS[end]], folder)
        return Whole(outcome(folder), copies)

    return of


@pytest.fixture
def finished(here, trained, read_once):
    """The directory of a finished run, in a working folder of its own with its data."""
    os.symlink(trained[0] / "data", "data")
    shutil.copytree(trained[0] / "runs", "runs")
    return only_run(here)


@pytest.fixture
def interrupted(here, uninterrupted, data, read_once):
    """As `finished`, of a run that was killed in its second epoch, at step 9 of 12; last.ckpt has step 8."""
    os.symlink(data, "data")
    shutil.copytree(uninterrupted("epochs").copies / "train_batch_start:10", "runs")
    return only_run(here)


@pytest.fixture(autouse=True)
def _no_module_of_another_test(tmp_path_factory):
    """Commands run in this process, and several tests have a my_layer.py of their own."""
    before, path = set(sys.modules), [*sys.path]
    yield
    sys.path[:] = path  # commands add the working folder
    folder = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
            del sys.modules[name]


@cache
def _online() -> bool:
    try:
        socket.create_connection(("huggingface.co", 443), timeout=5).close()
    except OSError:
        return False
    return True


def pytest_xdist_auto_num_workers(config):
    """Of `-n auto`: one more than cores, for many tests wait for processes of their own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_runtest_setup(item):
    if item.get_closest_marker("slurm"):
        if "slurm" not in item.config.getoption("markexpr"):
            pytest.skip("submits jobs to Slurm: `pytest -m slurm` runs these")
        if shutil.which("sinfo") is None or subprocess.run(["sinfo"], capture_output=True, timeout=20).returncode:
            pytest.skip("needs a running Slurm: sinfo finds none")
    if item.get_closest_marker("network") and not _online():
        pytest.skip("needs the internet")
