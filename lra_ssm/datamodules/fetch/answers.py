"""What a web server says of the bytes that it is about to send, and nothing believed that does not fit together."""

import re
from dataclasses import dataclass
from typing import Any

from lra_ssm.errors import squeeze

# Python takes no number of thousands of digits, and knows more digits than these ten.
_NUMBER = "[0-9]{1,18}"
_PART = re.compile(rf"bytes ({_NUMBER})-({_NUMBER})/({_NUMBER}|\*)")
_PACKED = (".gz", ".tgz")


class Broken(Exception):
    """It may work when tried again, after `wait` seconds if the server asked for that."""

    def __init__(self, what: str, wait: float = 0.0) -> None:
        super().__init__(squeeze(what))
        self.wait = wait


class Refused(Exception):
    """This address will not give the file."""

    def __init__(self, what: str) -> None:
        super().__init__(squeeze(what))


class PastTheEnd(Exception):
    """Status 416: the file does not go on behind the asked-for offset; `size` is its own, None if not told."""

    def __init__(self, size: int | None) -> None:
        super().__init__(f"the file has {size} bytes")
        self.size = size


@dataclass(frozen=True)
class Answer:
    """The bytes from `start` on are coming.

    Args:
        start: where in the file they belong.
        stop: where they end; None: where the body ends.
        total: the size of the whole file; None if not told.
        marked: whether a body that breaks off shows it.
        etag, last_modified: the file's version as the server has it.
    """

    start: int
    stop: int | None
    total: int | None
    marked: bool
    etag: str | None
    last_modified: str | None


def read_answer(response: Any, offset: int, name: str) -> Answer:
    """What the answer to a request for the bytes from `offset` on (0: for the file) says of itself.

    Args:
        response: of status 200 or 206.
        offset: what was asked for.
        name: of the file.

    Raises:
        Refused: the body is not the file's bytes, or its length makes no sense.
        Broken: it is a part that nobody asked for.
    """
    headers = response.headers
    encoding, transfer = (_joined(headers, key) for key in ("Content-Encoding", "Transfer-Encoding"))
    # Some servers call what is packed in itself encoded; nothing else was asked for.
    packed = encoding in ("gzip", "x-gzip") and name.endswith(_PACKED)
    if encoding not in ("", "identity") and not packed or transfer not in ("", "identity", "chunked"):
        raise Refused(f"sends it in another encoding than asked for ({squeeze(encoding or transfer)[:80]})")
    length = None if response.chunked else _length(headers)
    version = headers.get("ETag"), headers.get("Last-Modified")
    if response.status == 200:
        return Answer(0, length, length, response.chunked or length is not None, *version)
    if not offset:
        raise Broken("sent a part of the file, though nobody asked for one")
    told = _PART.fullmatch(headers.get("Content-Range") or "")
    start, stop = (int(told[1]), int(told[2]) + 1) if told else (0, 0)
    total = int(told[3]) if told and told[3] != "*" else None
    if start != offset or stop <= start or (total is not None and stop > total) or length not in (None, stop - start):
        raise Broken("sent another part of the file than was asked for")
    return Answer(start, stop, total, True, *version)


def size_past_the_end(headers: Any) -> int | None:
    """What an answer of status 416 says of the file's size."""
    told = re.fullmatch(rf"bytes \*/({_NUMBER})", headers.get("Content-Range") or "")
    return int(told[1]) if told else None


def strong_etag(value: Any) -> str | None:
    """An ETag that names one sequence of bytes, and can be sent back; None if it is none (W/"…" is weak)."""
    return value if isinstance(value, str) and re.fullmatch(r'"[\x21\x23-\x7e]{0,500}"', value) else None


def date(value: Any) -> str | None:
    """A Last-Modified that can be sent back; None if it is none."""
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][\x20-\x7e]{0,99}", value) else None


def _joined(headers: Any, name: str) -> str:
    return ", ".join(headers.get_all(name) or []).strip().lower()


def _length(headers: Any) -> int | None:
    values = {value.strip() for line in headers.get_all("Content-Length") or [] for value in line.split(",")}
    if not values:
        return None
    value = values.pop()
    if values or not re.fullmatch(_NUMBER, value):
        raise Refused(f"says that it has {squeeze(', '.join([value, *values]))[:80]!r} bytes")
    return int(value)
