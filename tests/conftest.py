import pytest

from tests.runner import FIT, SHORT, succeed


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with one finished run of tiny.yaml, and what the command printed."""
    folder = tmp_path_factory.mktemp("trained")
    result = succeed([*FIT, *SHORT], folder)
    return folder, result
