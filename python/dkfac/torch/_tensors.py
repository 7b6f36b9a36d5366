"""torch tensors as structs of the C interface, without a copy."""
from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from .. import _structs as c
from .._library import InvalidArgument

DTYPES = {torch.float64: c.F64, torch.float32: c.F32, torch.bfloat16: c.BF16, torch.float16: c.F16,
          torch.int32: c.I32}
TORCH_DTYPES = {number: dtype for dtype, number in DTYPES.items()}
_CPU = c.Device(c.CPU, 0)


def device_struct(device: torch.device) -> c.Device:
    if device.type == "cpu":
        return _CPU
    if device.type == "cuda":
        return c.Device(c.CUDA, device.index if device.index is not None else torch.cuda.current_device())
    raise InvalidArgument(f"[dkfac] the model is on {device}; it must be on the CPU or a CUDA device")


@functools.lru_cache(maxsize=4096)
def _layout(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> c.Tensor:
    """A struct without memory, to be copied for each tensor of one layout."""
    ndim = len(shape)
    if dtype not in DTYPES or ndim > c.MAX_DIMS:
        raise InvalidArgument(f"[dkfac] a tensor is {dtype} of {ndim} dimensions; there are at most "
                              f"{c.MAX_DIMS}, of float64, float32, bfloat16, float16 or int32")
    sizes = ctypes.c_int64 * ndim
    return c.Tensor(None, sizes(*shape), sizes(*strides), ndim, DTYPES[dtype], _CPU)


def point(struct: c.Tensor, tensor: torch.Tensor) -> None:
    """Makes the struct point to the memory of a tensor. On a CUDA device the stream is the current one of this thread:
    hooks run in threads of autograd, which sets it there."""
    struct.data = tensor.data_ptr()
    if tensor.is_cuda:
        stream: Any = torch.cuda.current_stream(tensor.device)  # torch 1.13 knows two classes of streams.
        tensor.record_stream(stream)
        struct.device, struct.stream = device_struct(tensor.device), stream.cuda_stream


def tensor_struct(tensor: torch.Tensor) -> c.Tensor:
    """The struct of a tensor, which has to live until the call that reads the struct returns."""
    layout = _layout(tensor.shape, tensor.stride(), tensor.dtype)
    struct = c.Tensor.from_buffer_copy(layout)
    struct.layout = layout  # Holds the arrays of sizes.
    point(struct, tensor)
    return struct


def shape_of(struct: c.Tensor) -> list[int]:
    return [struct.shape[i] for i in range(struct.ndim)]


def view_of(struct: c.Tensor) -> torch.Tensor:
    """A tensor over contiguous host memory of the library, valid as long as that memory."""
    dtype, shape = TORCH_DTYPES[struct.dtype], shape_of(struct)
    count = 1
    for size in shape:
        count *= size
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    size = count * torch.empty(0, dtype=dtype).element_size()
    return torch.frombuffer((ctypes.c_char * size).from_address(struct.data), dtype=dtype).view(shape)


def read(struct: c.Tensor) -> torch.Tensor:
    return view_of(struct).clone()
