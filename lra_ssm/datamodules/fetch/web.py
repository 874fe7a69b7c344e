"""One request to a web server, and what its failure means: another try, or no use. `download` builds on it."""

import re
import socket
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL
from typing import IO, Any
from urllib.parse import urlsplit

from lra_ssm import __version__

SCHEMES = ("https", "http")
WORTH_ANOTHER_TRY = (408, 425, 429)  # and every 5xx


class Broken(Exception):
    """It may work when tried again, after `wait` seconds if the server asked for that."""

    def __init__(self, what: str, wait: float = 0.0) -> None:
        super().__init__(what)
        self.wait = wait


class Refused(Exception):
    """This address will not give the file."""


class PastTheEnd(Exception):
    """Status 416: the file does not go on behind the asked-for offset; `size` is its own, None if not told."""

    def __init__(self, size: int | None) -> None:
        super().__init__(f"the file has {size} bytes")
        self.size = size


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to http and https alone, and never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme not in SCHEMES or (req.type == "https" and scheme == "http"):
            fp.close()
            raise Refused(f"redirects to {newurl}, which is not followed from {req.type} to {scheme}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_url(url: str, headers: dict[str, str], timeout: float) -> Any:
    """The answer to a GET request, its status 200 or 206; proxies as the environment says.

    Args:
        url: http or https.
        headers: sent beside User-Agent.
        timeout: seconds for the connection and for each wait on the server.

    Raises:
        Broken, Refused, PastTheEnd: see there.
    """
    try:
        request = urllib.request.Request(url, headers={"User-Agent": f"lra_ssm/{__version__}", **headers})
        response = urllib.request.build_opener(_Redirects).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            what = f"HTTP status {error.code} ({error.reason})"
            if error.code == 416:
                matched = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range") or "")
                raise PastTheEnd(int(matched[1]) if matched else None) from error
            if error.code >= 500 or error.code in WORTH_ANOTHER_TRY:
                wait = error.headers.get("Retry-After") or ""
                raise Broken(what, float(wait) if wait.isdecimal() else 0.0) from error
        raise Refused(what) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise Refused(f"its certificate is not valid ({error.reason.verify_message})") from error
        raise Broken(reason(error.reason)) from error
    except (InvalidURL, ValueError) as error:
        raise Refused(f"is no valid address ({error})") from error
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
