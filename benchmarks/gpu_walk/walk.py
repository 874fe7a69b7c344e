"""Counts the training steps of configs at their real size, on fake CUDA tensors.

`python -m benchmarks.gpu_walk.walk CONFIG…` prints a line of JSON for each: kernels, bytes moved, memory, what the
processor waits for, and calls with tensors of several devices.
"""

import argparse
from pathlib import Path

from benchmarks.gpu_walk import fake_cuda

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+", metavar="CONFIG", help="files; known: operations that are known to wait")
    configs = parser.parse_args().configs
    fake_cuda.install(fake_cuda.build())

import json
import time
import warnings
from contextlib import nullcontext, suppress
from typing import Any

import torch
import yaml
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.gpu_walk.waits import CountWaits
from lra_ssm.layers.spec import import_object
from lra_ssm.runs.compute import ComputeSettings
from lra_ssm.runs.cost import GPUS, count_step, seconds_on


def count(path: Path) -> CountWaits:
    """Count a training step of a config; return the counter, whose `cost` is that of the step."""
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    data = import_object(config["data"]["class_path"])(**config["data"]["init_args"])
    model, trainer = config["model"], config["trainer"]
    large = "3b" in path.stem  # more memory than a test should take
    with torch.device("meta") if large else nullcontext():
        task = import_object(model["class_path"])(**model["init_args"])
    device, batch = torch.device("cuda", 0), data.largest_batch()
    precision, clip = str(trainer.get("precision", "32-true")), trainer.get("gradient_clip_val")
    with ComputeSettings(**config.get("compute", {})).applied(task, device):
        counter = CountWaits(device)
        count_step(task, batch, device, precision=precision, clip=clip, counter=counter)
    return counter


def known() -> CountWaits:
    """Count waits of every kind and a tensor on the wrong device, all of which must be noticed."""
    with FakeTensorMode(), CountWaits(torch.device("cuda", 0)) as counter:
        x = torch.empty(4, 3, device="cuda")
        x[x[:, 0] > 0].sum().cpu()
        x.nonzero()
        torch.equal(x, x + float(x.sum()))
        with suppress(RuntimeError):  # torch refuses mixed devices in most operators, too
            torch.ops.aten.index_put_(x, [torch.zeros(4, dtype=torch.int64)], x)
    return counter


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    for name in configs:
        start = time.perf_counter()
        counter = known() if name == "known" else count(Path(name))
        cost, moved = counter.cost, counter.cost.total("operator", "size")
        report = {
            "config": name.rpartition("configs/")[2].removesuffix(".yaml"),
            "parameters": cost.parameters,
            "peak": cost.peak,
            "kept": cost.saved,
            "resident": cost.resident,
            "phase": cost.peak_phase,
            "launches": dict(cost.total("phase", "launches")),
            "moved": moved.total(),
            "products": {str(dtype): flops for dtype, flops in cost.total("dtype", "flops").items()},
            "waits": dict(counter.waits),
            "mixed": dict(counter.mixed),
            "bound": seconds_on(cost, GPUS["H100"], "high"),
            "largest": moved.most_common(5),
            "seconds": time.perf_counter() - start,
        }
        print(json.dumps(report), flush=True)
