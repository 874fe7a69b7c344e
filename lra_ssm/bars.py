"""Progress of long work: a bar in a terminal, a line every 30 s in a job's log."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm  # type: ignore[import-untyped]

from lra_ssm.errors import to_one_line

Item = TypeVar("Item")
TERMINAL, LOG = (2, 0.1), (30, 30)  # seconds before a bar is first shown, and between updates


class Bar(tqdm):
    """Shows how much is done, how fast, and the time left, on the standard error; nothing for short work.

    Args:
        what: the text in front of the bar.
        total: number of bytes, examples or steps; None if it is not known.
        unit: what is counted.
        in_bytes: whether bytes are counted.
        done: how many were done before; these do not count for the rate.
    """

    def __init__(
        self, what: str, total: float | None = None, *, unit: str = "", in_bytes: bool = False, done: int = 0
    ) -> None:
        delay, every = TERMINAL if sys.stderr.isatty() else LOG
        super().__init__(
            desc=to_one_line(what), total=total, unit="B" if in_bytes else f" {unit}", unit_scale=in_bytes,
            initial=done, leave=False, delay=delay, mininterval=every, dynamic_ncols=True,
        )  # fmt: skip

    advance = tqdm.update


def with_bar(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """Iterate over the items, `total` of them, with a bar that counts them."""
    with Bar(what, total) as bar:
        for item in items:
            yield item
            bar.advance(1)
