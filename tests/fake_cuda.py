"""CUDA without a GPU: tensors that know their device, type and shape, but hold no numbers.

PyTorch's FakeTensorMode refuses operations that mix devices or types. Around it, what a device would do late
or not at all is noted: reads that wait for it (`reads`), copies to it that block (`blocking`), and whether it
still has work that nobody waited for (`is_busy`). A capture forbids all of these, as CUDA does. Triton
kernels are not run: their launches are checked and counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode, resolve_name

from gpu_backend.kernels import int8_matmul, paged_attention, write_kv

CUDA = torch.device("cuda:0")
GIB = 2**30
aten = torch.ops.aten


class FakeCuda(TorchFunctionMode):
    """Notes what the host asks of the device. Entered inside a FakeTensorMode."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.blocking: list[str] = []
        self.launches: Counter[str] = Counter()
        self.variants: set[object] = set()  # of kernels: each is compiled when it is first launched
        self.is_busy = False
        self.is_capturing = False
        self._pinned: set[int] = set()  # storages
        self._kept: list[Tensor] = []  # so that no other tensor gets a pinned one's id

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = (resolve_name(func) or getattr(func, "__name__", "")).rpartition(".")[2]
        if name == "pin_memory":
            return self._pin(_unknown(args[0]))
        pins = kwargs.pop("pin_memory", False)
        if name in ("__getitem__", "__setitem__") and args[0].is_cuda:
            return self._index(name, *args)
        if name in ("tensor", "as_tensor", "new_tensor"):
            return self._constant(name, func, args, kwargs)
        if name == "to" and not args[0].is_cuda:
            pinned, args = self._is_pinned(args[0]), (_unknown(args[0]), *args[1:])
            if pinned:
                self._pin(args[0])
        out = self._copy(*args[:2]) if name == "copy_" else func(*args, **kwargs)
        if name in ("to", "copy_", "cpu", "cuda"):
            source = args[1] if name == "copy_" else args[0]
            self._note_copy(name, source, out, args, kwargs)
        if isinstance(out, Tensor) and out.is_cuda:
            self.is_busy = True
        return self._pin(out) if pins else out

    def launched(self, name: str, tensors: list[Tensor]) -> None:
        """Note a kernel of ours; its tensors must lie on the device, the last axis contiguous."""
        for each in tensors:
            assert each.device == CUDA, f"{name}: a tensor lies on {each.device}"
            assert each.shape[-1] <= 1 or each.stride(-1) == 1, f"{name}: strides {each.stride()}"
        self.launches[name] += 1
        self.is_busy = True

    def synchronize(self, *args: object) -> None:
        assert not self.is_capturing, "synchronize in a captured graph"
        self.is_busy = False

    def _pin(self, tensor: Tensor) -> Tensor:
        assert not self.is_capturing, "host memory is pinned in a captured graph"
        assert not tensor.is_cuda
        self._pinned.add(tensor.untyped_storage()._cdata)
        self._kept.append(tensor)
        return tensor

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def read(self, tensor: Tensor) -> Any:
        """Give zeros for what the device would have computed. Nothing is waited for if there is nothing."""
        if tensor.is_cuda and tensor.numel():
            self._forbidden("tolist")
            self.reads.append(_where())
            self.is_busy = False
        return _zeros(tensor)

    def _constant(self, name: str, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Tensor:
        """Make a tensor of numbers; on the device it comes by a copy."""
        device = kwargs.pop("device", args[0].device if name == "new_tensor" else None)
        dtype = kwargs.pop("dtype", args[0].dtype if name == "new_tensor" else None)
        made = torch.from_numpy(np.array(args[-1])).to(dtype) if dtype else func(args[-1])
        if device is None or torch.device(device).type != "cuda":
            return made
        self._forbidden(name)
        self.blocking.append(_where())
        return torch.empty(made.shape, dtype=made.dtype, device=device)

    def _note_copy(self, name: str, source: Any, out: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if not isinstance(source, Tensor) or source.is_cuda == out.is_cuda:
            return
        self._forbidden(name)
        host = out if source.is_cuda else source
        if not (kwargs.get("non_blocking") and self._is_pinned(host)):
            self.blocking.append(_where())
            self.is_busy = False

    def _forbidden(self, name: str) -> None:
        assert not self.is_capturing, f"{name} between host and device in a captured graph: {_where()}"

    def _index(self, name: str, tensor: Tensor, index: Any, *value: Any) -> Any:
        """Do what indexing does: it would ask for a CUDA build first."""
        view, advanced, dim = tensor, [], 0
        for each in index if isinstance(index, tuple) else (index,):
            if isinstance(each, list):
                self._forbidden("indexing by a list")
                self.blocking.append(_where())
                each = torch.empty(len(each), dtype=torch.int64, device=CUDA)
            if isinstance(each, Tensor):
                assert each.dtype == torch.int64, "a mask waits for the device"
                advanced += [None] * (dim - len(advanced)) + [each]
                dim += 1
            elif each is None:
                view, dim = view.unsqueeze(dim), dim + 1
            elif isinstance(each, slice):
                view, dim = aten.slice(view, dim, each.start, each.stop), dim + 1
            else:
                view = view.select(dim, each)
        self.is_busy = True
        if name == "__getitem__":
            return aten.index(view, advanced) if advanced else view
        (new,) = value
        if advanced:
            return aten.index_put_(view, advanced, new)
        return self._copy(view, new) if isinstance(new, Tensor) else view.fill_(new)

    def _copy(self, target: Tensor, source: Tensor) -> Tensor:
        """Copy: torch's own asks for a CUDA build. What is copied must fit."""
        source.expand(target.shape)
        return target


def _zeros(tensor: Tensor) -> Any:
    zeros: Any = 0
    for size in reversed(tensor.shape):
        zeros = [zeros] * size
    return zeros


def _unknown(tensor: Tensor) -> Tensor:
    """Return the like of a tensor without the numbers that FakeTensorMode remembers of small ones."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _where() -> str:
    """Name the line of the engine that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and "gpu_backend" not in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_name}"


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Let the engine find a CUDA device that computes nothing."""
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True):
        machine = FakeCuda()
        patch.setattr(FakeTensor, "tolist", lambda tensor: machine.read(tensor))
        _patch_torch(patch, machine)
        _patch_kernels(patch, machine)
        with machine:
            yield machine


def _patch_torch(patch: pytest.MonkeyPatch, machine: FakeCuda) -> None:
    """Answer for the device, and let streams and graphs do nothing but forbid what they must not contain."""

    @contextmanager
    def capture(graph: object, **kwargs: object) -> Iterator[None]:
        machine.is_capturing = True
        yield
        machine.is_capturing = False

    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=machine.synchronize)
    graph = SimpleNamespace(replay=lambda: machine.launched("graph", []))
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "get_device_name": "fake",
        "mem_get_info": (100 * GIB, 100 * GIB),
        "get_device_properties": SimpleNamespace(multi_processor_count=132),
        "set_device": None,
        "empty_cache": None,
        "graph_pool_handle": (0, 0),
        "Stream": stream,
        "current_stream": stream,
        "stream": nullcontext(),
        "CUDAGraph": graph,
    }
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, lambda *args, answer=answer, **kwargs: answer)
    patch.setattr(torch.cuda, "synchronize", machine.synchronize)
    patch.setattr(torch.cuda, "graph", capture)
    generator = torch.Generator
    patch.setattr(torch, "Generator", lambda device: generator())


def _patch_kernels(patch: pytest.MonkeyPatch, machine: FakeCuda) -> None:
    for module, names in (
        (paged_attention, ("_attend", "_merge_splits")),
        (write_kv, ("_write_rows",)),
        (int8_matmul, ("_int8_matmul",)),
    ):
        for name in names:
            patch.setattr(module, name, _Kernel(name, getattr(module, name), machine))


class _Kernel:
    """Stands in for a Triton kernel: `kernel[grid](*args)`."""

    def __init__(self, name: str, kernel: Any, machine: FakeCuda) -> None:
        self._name = name
        self._params = kernel.params
        self._machine = machine

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(size > 0 for size in grid), f"{self._name}: grid {grid}"
        assert all(size < 1 << 16 for size in grid[1:]), f"{self._name}: grid {grid}"
        return self._launch

    def _launch(self, *args: object, **constants: object) -> None:
        self._machine.launched(self._name, [each for each in args if isinstance(each, Tensor)])
        kinds = [
            _kind(each, param.do_not_specialize) for each, param in zip(args, self._params, strict=False)
        ]
        self._machine.variants.add((self._name, *kinds, *constants.items()))


def _kind(argument: Any, plain: bool) -> object:
    """Return what Triton compiles an argument for: its type, and whether it is 1 or a multiple of 16."""
    if isinstance(argument, Tensor):
        at = argument.storage_offset() * argument.element_size()
        return argument.dtype, plain or at % 16 == 0
    if isinstance(argument, int) and not plain:
        return argument == 1, argument % 16 == 0
    return type(argument)
