"""One request to a web server, and what its failure means: another try, or no use. `download` builds on it.

The server may be anybody: an answer's head, and all that is no part of the file, has a limit in bytes and in time.
"""

import http.client
import io
import socket
import ssl
import time
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL
from typing import IO, Any
from urllib.parse import urlsplit

from lra_ssm import __version__
from lra_ssm.datamodules.fetch.answers import Broken, PastTheEnd, Refused, size_past_the_end

SCHEMES = ("https", "http")
WORTH_ANOTHER_TRY = (408, 425, 429)  # and every 5xx
LEAST_BYTES = 1024  # in `timeout` seconds; who sends less sends for ever
OVERHEAD_BYTES = 1 << 20  # of heads, and of what surrounds each piece of a body


class _LimitedReader(io.RawIOBase):
    """What comes over a connection: the head of an answer in `timeout` seconds, then LEAST_BYTES in each such time.

    A socket's own timeout is for each byte that comes: one every few seconds would keep us for years.
    """

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._sock, self._timeout = raw, sock, sock.gettimeout()
        self._seen = self._since = 0  # bytes: in all, since the deadline was moved
        self._in_body = False
        self._move_deadline()
        self.allow(0)

    def allow(self, count: int) -> None:
        """So many bytes may come now, and a limited number around them."""
        self._allowed = self._seen + count + OVERHEAD_BYTES

    def begin_body(self) -> None:
        self._in_body = True
        self._move_deadline()

    def _move_deadline(self) -> None:
        self._since, self._deadline = 0, time.monotonic() + (self._timeout or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._timeout is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._sock.settimeout(left)
        count: int = self._raw.readinto(buffer) or 0
        self._seen, self._since = self._seen + count, self._since + count
        if self._seen > self._allowed:
            raise HTTPException("headers without end")
        if self._in_body and self._since >= LEAST_BYTES:
            self._move_deadline()
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **keywords: Any) -> None:
        super().__init__(sock, *args, **keywords)
        self._limited = _LimitedReader(self.fp.detach(), sock)
        self.fp = io.BufferedReader(self._limited)

    def begin(self) -> None:
        super().begin()
        self._limited.begin_body()

    def read1(self, n: int = -1) -> bytes:
        self._limited.allow(max(n, 0))
        return super().read1(n)

    def read(self, amt: int | None = None) -> bytes:
        return b""  # urllib reads what comes with a redirection, be it without end; nobody else calls this


class _Limited(urllib.request.AbstractHTTPHandler):
    def do_open(self, http_class: Any, req: urllib.request.Request, **arguments: Any) -> http.client.HTTPResponse:
        def connection(*args: Any, **keywords: Any) -> http.client.HTTPConnection:
            made: http.client.HTTPConnection = http_class(*args, **keywords)
            made.response_class = _Response
            return made

        return super().do_open(connection, req, **arguments)


class _Http(_Limited, urllib.request.HTTPHandler):
    pass


class _Https(_Limited, urllib.request.HTTPSHandler):
    pass


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to http and https alone, and never from https to http; ten times at most, as urllib does."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme not in SCHEMES or (req.type == "https" and scheme == "http"):
            fp.close()
            raise Refused(f"redirects to {newurl}, which is not followed from {req.type} to {scheme}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_url(url: str, headers: dict[str, str], timeout: float) -> Any:
    """The answer to a GET request, its status 200 or 206, to be read with `read1`; proxies as the environment says.

    Args:
        url: http or https.
        headers: sent beside User-Agent.
        timeout: seconds for the connection, for the answer's head, and for every LEAST_BYTES of its body.

    Raises:
        Broken, Refused, PastTheEnd: see there.
    """
    try:
        request = urllib.request.Request(url, headers={"User-Agent": f"lra_ssm/{__version__}", **headers})
        response = urllib.request.build_opener(_Redirects, _Http, _Https).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            what = f"HTTP status {error.code} ({error.reason})"
            if error.code == 416 and "Range" in headers:
                raise PastTheEnd(size_past_the_end(error.headers)) from error
            if error.code >= 500 or error.code in WORTH_ANOTHER_TRY:
                wait = error.headers.get("Retry-After") or ""
                raise Broken(what, float(wait) if wait.isdecimal() else 0.0) from error
        raise Refused(what) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise Refused(f"its certificate is not valid ({error.reason.verify_message})") from error
        raise Broken(reason(error.reason)) from error
    except (InvalidURL, ValueError, OverflowError) as error:  # the last of a port beyond 65535
        raise Refused(f"is no valid address, or redirects to none ({error})") from error
    except (OSError, HTTPException) as error:
        raise Broken(reason(error)) from error
    if response.status not in (200, 206):
        with response:
            raise Refused(f"HTTP status {response.status} ({response.reason})")
    return response


def reason(error: object) -> str:
    """What went wrong with a connection, in words."""
    if isinstance(error, socket.gaierror):
        return f"cannot be found ({error.strerror}; is this machine online?)"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"broken off ({str(error) or type(error).__name__})"
