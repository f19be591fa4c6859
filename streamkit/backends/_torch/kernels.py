"""The memory that torch's kernels use, as far as names and parameters are sure to tell.

The layout of the parameters is that of torch 2.11. The names of other kernels, such as cuBLAS's, do
not say what is read and what is written.
"""

from __future__ import annotations

import re
import struct
from math import prod
from typing import TYPE_CHECKING, Literal

import torch

from streamkit.protocols import MemoryUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Mode = Literal["read", "write"]

_SIZES = {
    "c10::complex<double>": 16, "c10::complex<float>": 8, "c10::complex<c10::Half>": 4,
    "double": 8, "long": 8, "unsigned long": 8, "float": 4, "int": 4, "unsigned int": 4,
    "c10::Half": 2, "c10::BFloat16": 2, "short": 2, "unsigned short": 2,
    "signed char": 1, "unsigned char": 1, "bool": 1,
}  # fmt: skip
_TYPE = "|".join(re.escape(name) for name in sorted(_SIZES, key=len, reverse=True))
_LAMBDA = re.compile(r"\{lambda\(([^(){}]+)\)#\d+\}")
_FUNCTOR = re.compile(rf"(\w+)<({_TYPE})(?:, (?:{_TYPE}), ({_TYPE}))?(?=[,>])")
_AS_ITS_INPUT = re.compile(r"FillFunctor|CUDAFunctor")
_WIDENS = re.compile(r"tofloat32_copy_kernel|complex_kernel|polar_kernel")
_DIMS, _DIVIDER = 25, 12  # the most axes of an offset calculator, and the bytes for each size
_POINTER = 8
_TRANSFORM = 64  # the most bytes of an address and of a computation with random numbers


def pieces_of_memory() -> Iterator[tuple[int, int]]:
    for segment in torch.cuda.memory_snapshot() if torch.cuda.is_initialized() else ():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                yield block["address"], block["requested_size"]


def explain_kernel(name: str, parameters: Sequence[bytes]) -> Iterable[MemoryUse] | None:
    explain = next((known for part, known in _KNOWN if part in name.partition("<")[0] + "<"), None)
    if explain is None:
        return None
    try:
        return list(explain(name, parameters))
    except (struct.error, IndexError):  # another torch has other parameters
        return None


# -- elementwise: the outputs come first ----------------------------------------------------------


def _contiguous(name: str, parameters: Sequence[bytes]) -> Iterator[MemoryUse]:
    (count,) = struct.unpack("<i", parameters[0])
    addresses = _words(parameters[2])
    outputs = int(name.partition("multi_outputs<")[2].partition(",")[0] or 1)
    sizes = _cast_sizes(parameters, len(addresses)) if "WithCast" in name else None
    for place, address in enumerate(addresses):
        mode: Mode = "write" if place < outputs else "read"
        size, is_exact = (sizes[place], True) if sizes else _item(name, place, outputs)
        if is_exact:
            yield MemoryUse(address, mode, (count,), (size,), size, is_sure=True)
        else:
            yield MemoryUse(address, mode, (count,), (1,), 1, is_sure=True)
            yield MemoryUse(address, mode, (count * size,) if size else None, (1,))


def _cast_sizes(parameters: Sequence[bytes], arrays: int) -> list[int]:
    """Return the bytes of the elements of an output and the inputs, which a cast knows."""
    loads, stores = parameters[-2:]
    inputs = struct.unpack(f"<{arrays - 1}I", loads[-4 * (arrays - 1) :])
    return [*struct.unpack("<I", stores[-4:]), *inputs]


def _strided(name: str, parameters: Sequence[bytes]) -> Iterator[MemoryUse]:
    (count,) = struct.unpack("<i", parameters[0])
    (held,) = parameters[1:]
    arrays, start = _arrays_of(len(held))
    addresses = struct.unpack_from(f"<{arrays}Q", held, start)
    (dims,) = struct.unpack_from("<i", held)
    shape = [struct.unpack_from("<I", held, 4 + _DIVIDER * axis)[0] for axis in range(dims)]
    if prod(shape) != count:
        raise IndexError
    table = struct.unpack_from(f"<{_DIMS * arrays}I", held, 4 + _DIVIDER * _DIMS)
    for place, address in enumerate(addresses):
        mode: Mode = "read" if place else "write"
        strides = tuple(table[axis * arrays + place] for axis in range(dims))
        size, is_exact = (0, False) if "gpu_kernel_impl<" in name else _item(name, place, 1)
        if not is_exact:
            yield MemoryUse(address, mode, tuple(shape), strides, 1, is_sure=True)
        steps = min((stride for stride in strides if stride), default=1)
        yield MemoryUse(address, mode, tuple(shape), strides, size or steps, is_sure=is_exact)


def _arrays_of(size: int) -> tuple[int, int]:
    """Return how many arrays a kernel with offsets has, and where their addresses begin."""
    arrays, start = 0, 0
    while True:
        more = arrays + 1
        begin = -(-(4 + _DIVIDER * _DIMS + 4 * _DIMS * more) // _POINTER) * _POINTER
        if begin + _POINTER * more > size:
            return arrays, start
        arrays, start = more, begin


def _item(name: str, place: int, outputs: int) -> tuple[int, bool]:
    """Return the bytes of an array's elements, and whether the types in the name tell them.

    If not, the bytes are the most that an element can have, or 0 because nothing is known.
    """
    text = name.partition(", std::array<")[0]
    if "gpu_kernel_impl" in name:
        text = name.partition("gpu_kernel_impl")[2].partition(">(at::TensorIteratorBase")[0]
    lambdas = _LAMBDA.findall(text)
    if lambdas:
        sizes = [_SIZES.get(one, 0) for one in lambdas[-1].split(", ")]
        if place >= outputs:
            size = sizes[place - outputs] if place - outputs < len(sizes) else 0
            return size, bool(size)
        widest = 0 if 0 in sizes else max(sizes)
        return widest * (2 if _WIDENS.search(text) else 1), False
    found = _FUNCTOR.search(text)
    if found is None:
        return 0, False
    functor, argument, result = found.groups()
    if place < outputs and result:
        return _SIZES[result], True
    return _SIZES[argument], place >= outputs or bool(_AS_ITS_INPUT.match(functor))


# -- others: where the addresses are --------------------------------------------------------------


def _reduction(name: str, parameters: Sequence[bytes]) -> Iterator[MemoryUse]:
    """Yield the input, the outputs, and the memory that the blocks of the kernel share."""
    source, *results = _words(parameters[0][-64:-16])
    yield from _begun(source, "read")
    yield from _begun(results[0], "write")
    yield from (MemoryUse(address, "write") for address in results[1:])


def _normalisation(name: str, parameters: Sequence[bytes]) -> Iterator[MemoryUse]:
    *_, source, weight, bias, mean, deviation, result = map(_words, parameters)
    for (address,) in (source, weight, bias):
        yield from _begun(address, "read")
    for (address,) in (mean, deviation, result):
        yield from _begun(address, "write")


def _random(name: str, parameters: Sequence[bytes]) -> Iterator[MemoryUse]:
    """Yield the seed and its offset, which a captured kernel reads, and one contiguous array."""
    if len(parameters[-1]) > _TRANSFORM:  # with the strides of several axes
        raise IndexError
    yield from (MemoryUse(address, "read") for address in _words(parameters[1][:16]))
    yield from _begun(_words(parameters[-1])[0], "write")


def _begun(address: int, mode: Mode) -> Iterator[MemoryUse]:
    """Yield an array whose first byte is surely used."""
    yield MemoryUse(address, mode, (1,), (1,), 1, is_sure=True)
    yield MemoryUse(address, mode)


def _words(held: bytes) -> tuple[int, ...]:
    return struct.unpack_from(f"<{len(held) // _POINTER}Q", held)


_KNOWN = (
    ("::vectorized_elementwise_kernel<", _contiguous),
    ("::unrolled_elementwise_kernel<", _contiguous),
    ("::unrolled_elementwise_kernel_for_multi_outputs<", _contiguous),
    ("::elementwise_kernel<", _strided),
    ("::reduce_kernel<", _reduction),
    ("::vectorized_layer_norm_kernel<", _normalisation),
    ("::distribution_elementwise_grid_stride_kernel<", _random),
)
