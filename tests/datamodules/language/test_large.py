"""Opening a text of six billion tokens: files that are holes, all zeros, cost a disk nothing. It prints the times."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules.storage import MANIFEST
from tests.datamodules.language.helpers import MadeUp, write_text

OPEN = """
import gc, json, re, sys, time
from tests.datamodules.language.helpers import MadeUp
def memory():
    return [int(x) for x in re.findall(r"(?:RssAnon|RssFile):\\s+(\\d+)", open("/proc/self/status").read())]
root, tokens = sys.argv[1:]
def measured(order):
    data = MadeUp(root=root, lengths=(int(tokens),), length=2048, batch_size=96, eval_batch_size=4, order=order)
    gc.collect()
    before, start = memory(), time.process_time()
    data.prepare_data(); data.setup("fit")
    opened = time.process_time() - start
    loader = iter(data.train_dataloader())
    batch = next(loader)
    first, after = time.process_time() - start, memory()
    for _ in range(10): next(loader)
    more = memory()
    return {"opened": opened, "first": first, "before": before, "after": after, "more": more,
            "ten more": time.process_time() - start - first, "shape": list(batch.inputs.shape)}
print(json.dumps({order: measured(order) for order in ("streams", "shuffled")}))
"""


def sparse(root: Path, tokens: int) -> None:
    """A text of so many tokens, a document every thousand; train is a hole but for its documents' positions."""
    folder = MadeUp(root=str(root), lengths=(tokens,)).prepared_folder
    manifest = write_text(folder, {"train": [[1, 2, 299]], "val": [[1, 2, 299]] * 100}).manifest
    train = manifest["splits"]["train"]
    train |= {"tokens": tokens, "documents": tokens // 1000}
    for key, dtype, size in (("tokens", "<u2", tokens), ("starts", "<i8", tokens // 1000)):
        array = np.lib.format.open_memmap(folder / f"train_{key}.npy", "w+", dtype, (size,))
        if key == "starts":
            array[:] = range(0, tokens, 1000)
        array.flush()
        train["arrays"][key] |= {"shape": [size], "bytes": (folder / f"train_{key}.npy").stat().st_size}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def opened(root: Path, tokens: int) -> dict[str, Any]:
    """By order."""
    command = [sys.executable, "-c", OPEN, str(root), str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.trials
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_six_billion_tokens_open_with_flat_memory(tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert soft == resource.RLIM_INFINITY
    found = {}
    for tokens in (60_000_000, 6_000_000_000):
        sparse(tmp_path, tokens)
        found[tokens] = opened(tmp_path, tokens)
        print(tokens, found[tokens])
    for order, large in found[6_000_000_000].items():
        small = found[60_000_000][order]
        assert large["shape"] == [96, 2048]
        for when in ("after", "more"):  # KiB of the process' own, and of mapped files
            own, mapped = (large[when][i] - large["before"][i] for i in (0, 1))
            assert own < small[when][0] - small["before"][0] + 32 * 1024  # an epoch's order: eight bytes a window
            assert mapped < 200 * 1024
