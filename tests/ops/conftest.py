"""Triton's interpreter, in which kernels run without a GPU, the backends of the selective scan, and their stand-ins."""

import pytest
import torch

from lra_ssm.ops.backends import mamba_ssm_kernels
from tests.ops.scan_cases import BACKENDS


@pytest.fixture
def interpreter(monkeypatch):
    """Without a GPU, let the kernels be interpreted, whoever imported triton before.

    The backend's own kernels are decorated when a call first imports them, so that the variable may be set as late as
    here.  Triton's library functions were decorated when triton was imported, by Lightning for instance.
    """
    triton = pytest.importorskip("triton")
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for module in (triton.language, triton.language.standard):
        for name in ("sum", "max", "zeros", "zeros_like", "cdiv"):
            function = getattr(module, name)
            if not isinstance(function, interpreter.InterpretedFunction):
                monkeypatch.setattr(module, name, interpreter.InterpretedFunction(function.fn))

    # Each call of a device function patches the whole language anew, half of the interpreter's time: once will do.
    patched = set()

    def call(self, *args, **kwargs):
        if id(self.fn.__globals__) not in patched:
            patched.add(id(self.fn.__globals__))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)


@pytest.fixture(params=[*BACKENDS, "triton"])
def backend(request):
    """Each fast backend of the selective scan, ready to run here."""
    if request.param == "triton":
        request.getfixturevalue("interpreter")
    return request.param


@pytest.fixture
def stand_in(request, monkeypatch):
    """The StandIn of the test's module, in the place of the kernel of mamba-ssm that it names, on a CPU."""
    function = request.module.StandIn()
    monkeypatch.setattr(mamba_ssm_kernels, function.kernel, lambda: function)
    monkeypatch.setattr(mamba_ssm_kernels, "_refuse_device", lambda device, kernel: None)
    return function


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
