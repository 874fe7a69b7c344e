"""`lra-ssm fit` itself, through Lightning's CUDA accelerator, on a GPU that is not there: `python -m tests.gpu_walk.fit
BATCH,BATCH,… ARGUMENT…` prints, as JSON, the exit code and where the processor waited between these batches.

What is on the GPU is fake and is not computed; all else (data, callbacks, files) is real.
"""

import sys

from tests.gpu_walk import fake_cuda

if __name__ == "__main__":
    fake_cuda.install(fake_cuda.build())

import functools
import json
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lra_ssm.cli import main
from tests.gpu_walk.waits import CountWaits

fake = FakeTensorMode(allow_non_fake_inputs=True)


def on_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


class Split(TorchDispatchMode):
    """What touches the GPU is fake, the rest as it is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = {**(kwargs or {})}, func.name().partition(".")[0]
        pinned = kwargs.pop("pin_memory", False)
        if name in ("aten::_pin_memory", "aten::is_pinned"):
            return args[0] if name == "aten::_pin_memory" else True
        fakes = [x for x in tree_leaves((args, kwargs)) if isinstance(x, FakeTensor)]
        if not fakes and not on_gpu(kwargs.get("device")):
            return func(*args, **kwargs)
        if name == "aten::_to_copy" and not on_gpu(kwargs.get("device", "cuda")):
            return real(args[0]).to(kwargs.get("dtype") or args[0].dtype)
        if name == "aten::copy_" and args[0].device.type == "cpu":
            return args[0].fill_(1)
        with fake:
            return func(*tree_map(faked, args), **tree_map(faked, kwargs), **({"pin_memory": True} if pinned else {}))


def faked(x: Any) -> Any:
    """A stand-in for x that nobody looks into, on its device."""
    if not isinstance(x, Tensor) or isinstance(x, FakeTensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def apply(self: nn.Module, function: Any, recurse: bool = True) -> nn.Module:
    """nn.Module's, with new parameters: torch puts no fake one into the place of a real one."""
    for module in self.modules() if recurse else [self]:
        for name, parameter in module._parameters.items():
            if parameter is not None and not isinstance(parameter, FakeTensor):
                moved = function(parameter.detach())
                module._parameters[name] = _moved.setdefault(
                    id(parameter), nn.Parameter(moved, parameter.requires_grad)
                )
                _kept.append(parameter)  # so that its number stays its own
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else function(buffer)
    return self


_moved: dict[int, nn.Parameter] = {}
_kept: list[nn.Parameter] = []


def made_of(real: Any) -> Any:
    """torch.tensor and the like, which make no tensor on a GPU that is not there."""

    def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        x = real(data, *args, **kwargs)
        return x.to(device) if on_gpu(device) else x

    return make


class Between(Callback):
    """Counts from one batch to another."""

    def __init__(self, counter: CountWaits, batches: list[int]) -> None:
        self.counter, self.batches = counter, batches
        self.waits: list[dict[str, int]] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx in self.batches:
            self.waits.append(dict(self.counter.waits))
            self.counter.reset()


def real(x: Any) -> Any:
    """What a copy of x from the GPU holds: ones."""
    return torch.ones(x.shape, dtype=x.dtype) if isinstance(x, FakeTensor) else x


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    nn.Module._apply = apply  # type: ignore[method-assign]
    save = torch.save
    torch.save = lambda x, *args, **kwargs: save(tree_map(real, x), *args, **kwargs)
    torch.cuda.Event = lambda *_, **__: SimpleNamespace(record=lambda *_: None, synchronize=lambda: None)
    torch.tensor, torch.as_tensor = made_of(torch.tensor), made_of(torch.as_tensor)
    counter = CountWaits(torch.device("cuda", 0))
    counting, initialize = Between(counter, [int(x) for x in sys.argv[1].split(",")]), Trainer.__init__

    @functools.wraps(initialize)
    def initialized(self: Trainer, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **{**kwargs, "callbacks": [*(kwargs.get("callbacks") or []), counting]})

    Trainer.__init__ = initialized  # type: ignore[method-assign]
    with Split(), counter:
        code = main(["fit", *sys.argv[2:]])
    print(json.dumps({"code": code, "waits": counting.waits[1:]}))
