"""The processes that srun starts for one run: each knows when another one ends, from its own start on.

Slurm lets the others run on (without --kill-on-bad-exit), torch waits half an hour for one that never comes, and NCCL
as long for one that died. So the first process has a connection to each of the others, which the kernel closes with
the process, whatever ended it.
"""

import select
import signal
import socket
import threading
import time
from contextlib import suppress

COMING = 300.0  # seconds from the first process's coming to the last one's: they start together, and load the same
# In place of an exit code: it never came; it ended without a word; nothing ended, all are there.
ABSENT, DIED, _ALL_HERE = -1, -2, -3
_SECOND = 1.0  # for a connection to be made, and to say whose it is


class Peers:
    """The connections of one process, to be looked at again and again.

    The first one listens where torch is going to, once all are there: no other port need be open between nodes.

    Args:
        rank, size: this process's, and how many there are.
        address, port: of the first process; torch's.

    Raises:
        OSError: the first process cannot listen there.
    """

    def __init__(self, rank: int, size: int, address: str, port: int) -> None:
        self.met = threading.Event()  # all are there
        self._rank, self._size, self._place = rank, size, (address, port)
        self._until = time.monotonic() + COMING
        self._links: dict[int, socket.socket] = {}  # by the rank at the other end
        self._server = None if rank else _server(port)

    def look(self) -> tuple[int, int] | None:
        """The rank and the exit code (or ABSENT, or DIED) of a process that is gone before its time."""
        if not self.met.is_set():
            self._wait_for_others(self._server) if self._server else self._go_to_the_first()
        ranks = {link: rank for rank, link in self._links.items()}
        for link in select.select(ranks, [], [], 0)[0]:
            try:
                said = link.recv(256).decode()
            except OSError:
                said = ""
            for line in said.splitlines() or [f"{ranks[link]} {DIED}"]:
                rank, code = map(int, line.split())
                if code == _ALL_HERE:
                    self.met.set()
                elif code:
                    self._tell(rank, code)
                    return rank, code
                else:
                    self._links.pop(rank).close()  # its work is done
        if not self.met.is_set() and time.monotonic() > self._until:
            if absent := sorted(set(range(self._size if self._server else 1)) - {self._rank} - self._links.keys()):
                self._tell(absent[0], ABSENT)
                return absent[0], ABSENT
        return None

    def leave(self, code: int) -> None:
        """Says how this process ends."""
        self._tell(self._rank, code)

    def close(self) -> None:
        for each in ([self._server] if self._server else []) + list(self._links.values()):
            each.close()

    def _wait_for_others(self, server: socket.socket) -> None:
        while select.select([server], [], [], 0)[0]:
            link, _ = server.accept()
            link.settimeout(_SECOND)
            try:
                self._links[int(link.recv(16))] = link
            except (OSError, ValueError):  # a stranger
                link.close()
        if len(self._links) == self._size - 1:
            server.close()  # torch listens next
            self._tell(self._rank, _ALL_HERE)
            self.met.set()

    def _go_to_the_first(self) -> None:
        if not self._links:
            with suppress(OSError):  # it is not there yet
                link = socket.create_connection(self._place, _SECOND)
                link.sendall(f"{self._rank}\n".encode())
                self._links[0] = link

    def _tell(self, rank: int, code: int) -> None:
        for link in list(self._links.values()):
            with suppress(OSError):
                link.sendall(f"{rank} {code}\n".encode())


def how(code: int) -> str:
    """The rest of a sentence on a process that is gone with this exit code, or with ABSENT or DIED."""
    if code == ABSENT:
        return f"did not come within {COMING:g} s"
    if code - 128 in signal.valid_signals():
        return f"was stopped by {signal.Signals(code - 128).name}"
    return "has died" if code == DIED else f"ended with exit code {code}"


def _server(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # an IPv6 that is switched off
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
