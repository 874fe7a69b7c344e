"""What a broken or hostile server may answer: the right file or one line, in few requests, and never a mixture.

Each case is tried where the digest is published, the size, and neither; and once the server has recovered, the right
file comes.
"""

import gzip
import hashlib
import random
import re
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path

import pytest

from lra_ssm.datamodules.fetch import download as module
from lra_ssm.datamodules.fetch.download import RemoteFile, download
from lra_ssm.errors import InputError
from tests.datamodules.raw_server import Request, Script, head, talking

SIZE = 20_000
DATA = random.Random(0).randbytes(SIZE)
OTHER = random.Random(1).randbytes(SIZE)
NAME = "file.bin"
TAG, OTHER_TAG = 'ETag: "one"', 'ETag: "two"'
DATE = "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT"
TRIES = 3
PUBLISHED = {
    "digest": {"digest": f"sha256:{hashlib.sha256(DATA).hexdigest()}"},
    "size": {"size": SIZE},
    "nothing": {},
}
Sent = Iterable[bytes | float]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def honest(request: Request, number: int) -> Sent:
    start = int(request.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
    if start and request.get("if-range") in (None, '"one"'):
        yield head(206, TAG, f"Content-Range: bytes {start}-{SIZE - 1}/{SIZE}", length=SIZE - start) + DATA[start:]
    else:
        yield head(200, TAG, length=SIZE) + DATA


def whole(*fields: str, body: bytes = DATA, length: int | None = None) -> Script:
    """Answers every request so."""
    return lambda request, number: [head(200, TAG, *fields, length=length) + body]


def rest(*fields: str, body: bytes = DATA[8000:], status: int = 206, tag: str = TAG) -> Script:
    """Breaks off after 8,000 bytes, and answers requests for the rest so."""

    def script(request: Request, number: int) -> Sent:
        if "range" not in request:
            return [head(200, tag, length=SIZE) + DATA[:8000]]
        return [head(status, *fields) + body]

    return script


def chunks(body: bytes, size: int = 3000) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])


def endless(start: bytes, more: bytes) -> Script:
    def script(request: Request, number: int) -> Iterator[bytes]:
        yield start
        yield from repeat(more)

    return script


def drip(text: bytes, before: bytes = b"", every: int = 1) -> Script:
    def script(request: Request, number: int) -> Iterator[bytes | float]:
        yield before
        for i in range(0, len(text), every):
            yield text[i : i + every]
            yield 0.02

    return script


def redirect(to: str, body: bytes = b"", length: int | None = 0) -> Script:
    return lambda request, number: [head(302, f"Location: {to}", length=length) + body]


def byte_by_byte(request: Request, number: int) -> Sent:
    if "range" not in request:
        return [head(200, TAG, length=SIZE) + DATA[:8000]]
    start = int(request["range"][6:-1])
    return [head(206, TAG, f"Content-Range: bytes {start}-{start}/{SIZE}") + DATA[start:]]


CHUNKED = "Transfer-Encoding: chunked"
REST = f"Content-Range: bytes 8000-{SIZE - 1}/{SIZE}"
RIGHT = "right"
LENGTHS = ["²", "9" * 5000, "-5", "+20000", "20_000", "5, 6", "0x10", "1e3", "NaN", "\t", "20000;", "2 0000", "9" * 19]
RANGES = [
    "bytes 0-999/20000", "bytes 7999-19999/20000", "bytes 8001-19999/20000", "bytes 8000-7999/20000",
    "bytes 8000-7000/20000", "bytes 8000-19999/19999", "bytes 8000-20000/20000", "bytes 8000-20999/21000",
    "bytes 8000-19999/30000", "bytes 8000-8999/9000", "bytes ²-³/²", f"bytes 8000-19999/{'9' * 5000}",
    f"bytes {'8' * 5000}-19999/20000", "bytes */20000", "items 8000-19999/20000", "bytes 8000-99999999/*",
    "bytes=8000-19999/20000", "", "8000-19999", "bytes 8000-19999", "bytes -1-19999/20000", "bytes 8000-19999/-1",
]  # fmt: skip
# name: (the server, what comes of it: RIGHT or a part of the message)
CASES: dict[str, tuple[Script, str]] = {
    # parts
    "a part that nobody asked for": (
        lambda r, n: [head(206, TAG, "Content-Range: bytes 0-999/600000", length=1000) + DATA[:1000]],
        "nobody asked for",
    ),
    "all as a part that nobody asked for": (
        lambda r, n: [head(206, TAG, f"Content-Range: bytes 0-{SIZE - 1}/{SIZE}", length=SIZE) + DATA],
        "nobody asked for",
    ),
    "several parts in one": (rest(TAG, "Content-Type: multipart/byteranges; boundary=x"), "another part"),
    **{f"Content-Range {v[:30]!r}": (rest(TAG, f"Content-Range: {v}"), "another (part|version)") for v in RANGES},
    "a part with another length": (rest(TAG, REST, "Content-Length: 11999"), "another part"),
    "a part that goes on": (rest(TAG, REST, body=DATA[8000:] + b"more"), RIGHT),
    "a part without the size of the whole": (rest(TAG, f"Content-Range: bytes 8000-{SIZE - 1}/*"), RIGHT),
    "a part that breaks off": (rest(TAG, REST, body=DATA[8000:8500]), "tries without progress"),
    "a part in chunks": (rest(TAG, REST, CHUNKED, body=chunks(DATA[8000:])), RIGHT),
    "parts of a byte": (byte_by_byte, "tries without progress"),
    "the whole instead of the rest": (rest(TAG, f"Content-Length: {SIZE}", body=DATA, status=200), RIGHT),
    "an empty rest": (rest(TAG, REST, "Content-Length: 0", body=b""), "another part"),
    # versions
    "a size that grows with every request": (
        lambda r, n: [head(200, TAG, length=SIZE + n * 1000) + DATA[:8000]]
        if "range" not in r
        else [head(206, TAG, f"Content-Range: bytes 8000-{SIZE + n * 1000 - 1}/{SIZE + n * 1000}") + DATA[8000:]],
        "another version|instead of the published",
    ),
    # the file's length
    **{f"Content-Length {v[:9]!r}": (whole(f"Content-Length: {v}"), "says that it has|more than") for v in LENGTHS},
    "two lengths": (whole("Content-Length: 20000", "Content-Length: 19999"), "says that it has"),
    "one length twice": (whole("Content-Length: 20000", "Content-Length: 20000"), RIGHT),
    "a body that breaks off": (whole(body=DATA[:500], length=SIZE), "broken off before 20,000 bytes, 3 tries"),
    "a body that goes on": (whole(body=DATA + b"more", length=SIZE), RIGHT),
    "an empty file": (whole(body=b"", length=0), "is empty|instead of the published"),
    "more than there is room for anywhere": (whole(length=10**17), "more than|instead of the published"),
    # no length
    "chunks": (whole(CHUNKED, body=chunks(DATA)), RIGHT),
    "chunks of a byte": (whole(CHUNKED, body=chunks(DATA, 1)), RIGHT),
    "chunks, and a length that is wrong": (whole(CHUNKED, body=chunks(DATA), length=100), RIGHT),
    "chunks that break off": (whole(CHUNKED, body=chunks(DATA)[:500]), "broken off"),
    "a last chunk that is missing": (whole(CHUNKED, body=chunks(DATA)[:-5]), "broken off"),
    "a chunk without a size": (whole(CHUNKED, body=b"zz\r\n" + DATA), "broken off"),
    "a chunk of negative size": (whole(CHUNKED, body=b"-5\r\n" + DATA), "broken off|more than|is empty|sha256"),
    "a chunk of any size": (whole(CHUNKED, body=b"f" * 40 + b"\r\n" + DATA), "broken off"),
    "a chunk size without end": (endless(head(200, TAG, CHUNKED), b"0" * 5000), "broken off"),
    "a chunk size of words": (whole(CHUNKED, body=b"5;" + b"x" * 70_000), "broken off"),
    "trailers without end": (endless(head(200, TAG, CHUNKED) + chunks(DATA)[:-2], b"X: y\r\n" * 500), "without end"),
    "chunks without end": (endless(head(200, TAG, CHUNKED), chunks(DATA)[:-5]), "more than|without end"),
    "a body without end": (endless(head(200, TAG), DATA), "more than|does not say"),
    "a body without end in small pieces": (endless(head(200, TAG), b"x" * 2000), "more than|does not say"),
    # encodings
    "gzip": (whole("Content-Encoding: gzip", body=gzip.compress(DATA)), "another encoding .*gzip"),
    "two encodings": (whole("Content-Encoding: identity", "Content-Encoding: br"), "another encoding"),
    "no encoding": (whole("Content-Encoding: identity", length=SIZE), RIGHT),
    "transfer in gzip": (whole("Transfer-Encoding: gzip, chunked", body=chunks(DATA)), "another encoding"),
    # status
    "416 from the beginning": (lambda r, n: [head(416, "Content-Range: bytes */0", length=0)], "HTTP status 416"),
    "416 and the size": (lambda r, n: [head(416, f"Content-Range: bytes */{SIZE}", length=0)], "HTTP status 416"),
    "416 to the rest": (rest(f"Content-Range: bytes */{SIZE}", status=416, body=b""), "another number of bytes"),
    "416, the size is what is here": (rest("Content-Range: bytes */8000", status=416, body=b""), "another number"),
    "416 with any size": (rest(f"Content-Range: bytes */{'9' * 5000}", status=416, body=b""), "another number"),
    "416 with digits of others": (rest("Content-Range: bytes */²", status=416, body=b""), "another number"),
    "no content": (lambda r, n: [head(204)], "HTTP status 204"),
    "not modified": (lambda r, n: [head(304)], "HTTP status 304"),
    "early hints": (lambda r, n: [head(103)], "HTTP status 103"),
    "other protocols": (lambda r, n: [head(101, "Upgrade: x")], "HTTP status 101"),
    "a status beyond all": (lambda r, n: [head(999)], "HTTP status 999"),
    "a status of four digits": (lambda r, n: [head(2000)], "broken off"),
    "a status in other digits": (lambda r, n: [head("²00")], "broken off"),
    "a reason with escape sequences": (lambda r, n: [head(404, reason="\x1b[2J\x9b1m\x07")], r"404 \(.*x1b\[2J"),
    "overloaded for ever": (lambda r, n: [head(503, "Retry-After: " + "9" * 5000)], "HTTP status 503"),
    "asks to wait in other digits": (lambda r, n: [head(503, "Retry-After: ²")], "HTTP status 503"),
    # heads
    "nothing": (lambda r, n: [], "closed|broken off|reset"),
    "half a head": (lambda r, n: [head(200, TAG, length=SIZE)[:30]], "does not say|is empty|broken off"),
    "no status line": (lambda r, n: [b"\r\n\r\n" + DATA], "broken off"),
    "another protocol": (lambda r, n: [b"SSH-2.0-x\r\n"], "broken off"),
    "a version of the future": (lambda r, n: [b"HTTP/3 200 OK\r\n\r\n"], "broken off"),
    "a status line without end": (endless(b"HTTP/1.1 200 ", b"x" * 5000), "broken off"),
    "a header line without end": (endless(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 5000), "broken off"),
    "headers without end": (endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), "broken off"),
    "100 Continue for ever": (endless(b"", head(100) * 50), "without end"),
    "100 Continue once": (lambda r, n: [head(100), head(200, TAG, length=SIZE) + DATA], RIGHT),
    "a line that is no header": (whole("no header at all", f"Content-Length: {SIZE}"), f"{RIGHT}|does not say"),
    "control characters in headers": (whole("X-\x1b: \x00\x07", length=SIZE), f"{RIGHT}|does not say"),
    # redirections
    "to itself": (lambda r, n: [head(302, "Location: /a", length=0)], "HTTP status 302"),
    "ever further": (lambda r, n: [head(302, f"Location: /{n}", length=0)], "HTTP status 302"),
    "nowhere": (lambda r, n: [head(302, length=0)], "HTTP status 302"),
    **{
        f"to {where[:30]!r}": (redirect(where), "[Rr]edirect|no host|HTTP status|refused|cannot be found")
        for where in ("http://127.0.0.1:99999/", "http://127.0.0.1:²/", "http://[::1/", "http://", "file:///etc/passwd",
                      "http://\x1b[2J/", "ftp://127.0.0.1/x", "//", "http://127.0.0.1:-1/", "http://127.0.0.1:1/\x07",
                      "data:,x", "http://" + "a" * 70 + ".invalid.:1/", "http://a b/", "javascript:x")
    },
    "with a body without end": (endless(head(302, "Location: /a"), b"x" * 5000), "HTTP status 302"),
    "with a body of any length": (redirect("/a", b"x", 10**18), "HTTP status 302"),
    # slow
    "a head byte by byte": (drip(head(200, TAG, "X: " + "y" * 500, length=SIZE)), "timed out"),
    "a body byte by byte": (drip(DATA, head(200, TAG, length=SIZE)), "timed out"),
    "chunk sizes byte by byte": (drip(b"0" * 5000, head(200, TAG, CHUNKED)), "timed out"),
    "slow but steady": (drip(DATA, head(200, TAG, length=SIZE), every=1000), RIGHT),
    "silent": (lambda r, n: [1.0], "timed out"),
}  # fmt: skip
SLOW = [*CASES][[*CASES].index("a head byte by byte") :]


def fetch(url: str, folder: Path, name: str = NAME, timeout: float = 10.0, **settings: object) -> bytes:
    download(RemoteFile((url,), name, **settings), folder, timeout=timeout, tries=TRIES, backoff=0.0)  # type: ignore[arg-type]
    return (folder / name).read_bytes()


@pytest.mark.parametrize("published", PUBLISHED)
@pytest.mark.parametrize("case", CASES)
def test_the_right_file_or_one_line(tmp_path: Path, case: str, published: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script, expected = CASES[case]
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 22)
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.0)
    with talking(script) as site:
        url = f"{site.url}/{NAME}"
        try:
            assert fetch(url, tmp_path, timeout=0.2 if case in SLOW else 10.0, **PUBLISHED[published]) == DATA
            assert expected.startswith(RIGHT)
        except InputError as error:
            message = str(error)
            assert message.startswith(f"{NAME} cannot be downloaded: {url}: ") and message.isprintable()
            if expected == RIGHT:
                raise
        else:
            message = RIGHT
        assert re.search(expected, message) or (published == "size" and "published" in message), message
        assert len(site.requests) <= 11 * TRIES
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < SIZE + 1000
        site.script = honest
        assert fetch(url, tmp_path, **PUBLISHED[published]) == DATA
        assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, f"{NAME}.download.json"]


VERSIONS = {  # of the first answer's, and of the rest's
    "If-Range ignored": (TAG, OTHER_TAG),
    "If-Range ignored, no ETag": (TAG, "X: y"),
    "If-Range ignored, a weak one": (TAG, 'ETag: W/"one"'),
    "a weak ETag twice": ('ETag: W/"one"', 'ETag: W/"one"'),
    "a date, then none": (DATE, "X: y"),
    "a date, then another": (DATE, DATE.replace("01 Jan", "02 Jan")),
    "neither": ("X: y", "X: y"),
    "an ETag, then a date": (TAG, DATE),
    "an ETag that is none": ("ETag: one", "ETag: one"),
    "an ETag with control characters": ('ETag: "\x1b\x07"', 'ETag: "\x1b\x07"'),
    "an ETag of two lines": ('ETag: "a\r\n b"', 'ETag: "a\r\n b"'),
    "a long ETag": (f'ETag: "{"a" * 5000}"', f'ETag: "{"a" * 5000}"'),
    "an ETag with other letters": ('ETag: "\xe9"', 'ETag: "\xe9"'),
    "an empty ETag and date": ("ETag:\r\nLast-Modified:", "ETag:\r\nLast-Modified:"),
}


@pytest.mark.parametrize("published", PUBLISHED)
@pytest.mark.parametrize("case", VERSIONS)
def test_two_versions_are_never_mixed(tmp_path: Path, case: str, published: str) -> None:
    """The file changes while it is downloaded, and the server sends the rest of the new one to who has the old."""
    old, new = VERSIONS[case]

    def changed(request: Request, number: int) -> Sent:
        start = int(request.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        if number == 1:
            return [head(200, old, length=SIZE) + OTHER[:8000]]
        part = f"Content-Range: bytes {start}-{SIZE - 1}/{SIZE}"
        return [
            head(206, new, part, length=SIZE - start) + DATA[start:] if start else head(200, new, length=SIZE) + DATA
        ]

    with talking(changed) as site:
        assert fetch(f"{site.url}/x", tmp_path, **PUBLISHED[published]) == DATA
        assert len(site.requests) <= TRIES + 1


def test_the_number_of_requests_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However steady the progress is."""
    monkeypatch.setattr(module, "MOST_REQUESTS", 7)

    def piecemeal(request: Request, number: int) -> Sent:
        start = int(request.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        part = f"Content-Range: bytes {start}-{start + 1999}/{SIZE}"
        return [
            head(206, TAG, part) + DATA[start : start + 2000] if start else head(200, TAG, length=SIZE) + DATA[:2000]
        ]

    with talking(piecemeal) as site:
        with pytest.raises(InputError, match="not whole after 7 requests; the first 14,000 bytes are kept"):
            fetch(site.url, tmp_path)
        assert len(site.requests) == 7
        assert fetch(site.url, tmp_path) == DATA
        assert site.ranges()[7:] == ["bytes=14000-", "bytes=16000-", "bytes=18000-"]


def test_what_is_packed_in_itself_may_be_called_encoded(tmp_path: Path) -> None:
    packed = gzip.compress(DATA)
    with talking(lambda r, n: [head(200, "Content-Encoding: x-gzip", length=len(packed)) + packed]) as site:
        assert fetch(site.url, tmp_path, "file.tar.gz") == packed


@pytest.mark.parametrize(
    "note",
    [
        '{"url": "URL", "etag": ["a"], "last_modified": null, "size": 20000}',
        '{"url": "URL", "etag": "\\"a\\\\r\\\\nX: y\\"", "last_modified": null, "size": 20000}',
        '{"url": "URL", "etag": "\\"one\\"", "last_modified": "\\ud800", "size": 20000}',
        '{"url": "URL", "etag": "\\"one\\"", "last_modified": null, "size": "20000"}',
        '{"url": "URL", "etag": "\\"one\\"", "last_modified": null, "size": 100}',
        '{"url": "URL", "etag": "\\"one\\"", "size": 20000, "more": 1}',
        '{"url": ["URL"], "etag": "\\"one\\"", "size": 20000}',
        "[" * 100_000,
        "1" * 5000,
    ],
)
def test_damaged_notes_of_a_part(tmp_path: Path, note: str) -> None:
    with talking(honest) as site:
        (tmp_path / f"{NAME}.partial").write_bytes(OTHER[:8000])
        (tmp_path / f"{NAME}.partial.json").write_text(note.replace("URL", f"{site.url}/x"))
        assert fetch(f"{site.url}/x", tmp_path) == DATA and site.ranges() == [None]


def test_a_damaged_note_of_a_file(tmp_path: Path) -> None:
    with talking(honest) as site:
        (tmp_path / NAME).write_bytes(DATA)
        (tmp_path / f"{NAME}.download.json").write_text("[" * 100_000)
        assert fetch(site.url, tmp_path) == DATA and not site.requests


@pytest.mark.parametrize(
    "seeds", [range(15), pytest.param(range(15, 150), marks=pytest.mark.slow)], ids=lambda r: str(len(r))
)
def test_random_damage_to_heads(tmp_path: Path, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.0)
    for seed in seeds:
        rng = random.Random(seed)

        def script(request: Request, number: int, rng: random.Random = rng) -> Sent:
            good = b"".join(part for part in honest(request, number) if isinstance(part, bytes))
            top, body = bytearray(good[: -len(good.partition(b"\r\n\r\n")[2])]), good.partition(b"\r\n\r\n")[2]
            for _ in range(rng.choice([0, 1, 1, 3])):
                at = rng.randrange(len(top))
                top[at : at + rng.choice([0, 1, 1, 9])] = rng.choice([rng.randbytes(1), b"\r\n", b"9", b"", b"\xb2"])
            return [bytes(top) + body[: rng.randrange(len(body) + 1) if rng.random() < 0.5 else len(body)]]

        with talking(script) as site:
            for name, published in list(PUBLISHED.items())[:2]:
                folder = tmp_path / f"{seed}-{name}"
                try:
                    got = fetch(f"{site.url}/x", folder, timeout=1.0, **published)
                    assert got == DATA if name == "digest" else len(got) == SIZE
                except InputError as error:
                    assert str(error).isprintable()
                assert len(site.requests) < 200
