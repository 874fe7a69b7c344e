"""A web server in a thread that sends whatever bytes a test wants."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Request = dict[str, str]  # header fields by their names in lower case, "path" among them
Script = Callable[[Request, int], Iterable[bytes | float]]  # of the n-th request: what to send; numbers are pauses


class RawSite:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.url = ""

    def ranges(self) -> list[str | None]:
        return [request.get("range") for request in self.requests]


def head(status: int | str, *fields: str, reason: str = "OK", length: int | None = None) -> bytes:
    if length is not None:
        fields = (*fields, f"Content-Length: {length}")
    return "\r\n".join([f"HTTP/1.1 {status} {reason}", *fields, "", ""]).encode("latin-1")


@contextmanager
def talking(script: Script) -> Iterator[RawSite]:
    site = RawSite(script)
    listening = socket.create_server(("127.0.0.1", 0))
    site.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: Any) -> None:
        with connection:
            try:
                lines = [
                    line.rstrip(b"\r\n").decode("latin-1") for line in iter(connection.makefile("rb").readline, b"\r\n")
                ]
                if not lines:
                    return
                fields = (line.partition(": ") for line in lines[1:])
                request = {name.lower(): value for name, _, value in fields} | {"path": lines[0].split()[1]}
                site.requests.append(request)
                for part in site.script(request, len(site.requests)):
                    if isinstance(part, bytes):
                        connection.sendall(part)
                    else:
                        time.sleep(part)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):  # until the other side is gone: else what was sent might be lost
                    pass
            except OSError:
                pass  # the other side is gone

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()
