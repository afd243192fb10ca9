"""Linear layers and token tables as panels.h multiplies with them: in panels, quantized or not as the model's file is.

Knows mlx's modules and the layout of panels; knows no network.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear

from workers.cpu.kept import Kept

PANEL = 32
"""Outputs that lie side by side. What is not a table must have a multiple of them, and of inputs."""

_FLOAT32, _FLOAT16, _BFLOAT16, _BITS4, _BITS8, _BITS4_WIDE, _BITS8_WIDE = range(7)
_QUANTIZED = {(4, False): _BITS4, (8, False): _BITS8, (4, True): _BITS4_WIDE, (8, True): _BITS8_WIDE}

Array = npt.NDArray[Any]


class Matrix(ctypes.Structure):
    """panels.h's."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "bias")),
        *((name, ctypes.c_int32) for name in ("kind", "outputs", "inputs", "group")),
    )


@dataclass(frozen=True)
class _Rows:
    """A layer's numbers, an output in each row."""

    kind: int
    weight: Array
    """(outputs, inputs), or words of several inputs each."""
    scales: Array | None = None
    """(outputs, groups, 2): scale and bias of each group."""
    bias: Array | None = None
    """(outputs,)."""
    group: int = 0
    inputs: int = 0


class Matrices:
    """Makes them, and holds their memory."""

    def __init__(self, halves: bool) -> None:
        """halves: whether the processor reads float16."""
        self._kept = Kept()
        self._halves = halves

    @property
    def nbytes(self) -> int:
        """Of all that it holds."""
        return sum(array.nbytes for array in self._kept.arrays)

    def stacked(self, modules: Sequence[Any]) -> Matrix:
        """The layers' outputs one behind the other. The modules are emptied."""
        rows = self._alike(modules)
        return self._matrix(rows[0] if len(rows) == 1 else _joined(rows, 0), sum(len(each.weight) for each in rows))

    def interleaved(self, modules: Sequence[Any]) -> Matrix:
        """A panel of each layer in turn; they have as many outputs. The modules are emptied."""
        rows = self._alike(modules)
        return self._matrix(_joined([_panelled(each) for each in rows], 1), sum(len(each.weight) for each in rows))

    def dense(self, weight: Array, bias: Array | None) -> Matrix:
        """weight (outputs, inputs) and bias (outputs,) or none, float32."""
        numbers, whole = narrow(weight, self._halves)
        rows = _Rows(_FLOAT32 if whole else _FLOAT16, numbers, bias=bias, inputs=weight.shape[1])
        return self._matrix(rows, len(weight))

    def array(self, array: Any) -> int:
        """Where a copy of it lies, in float32."""
        return self._kept.at(np.array(array.astype(mx.float32)))

    def _alike(self, modules: Sequence[Any]) -> list[_Rows]:
        """All of one kind, which is float32 where they differ."""
        found = [_read(module, self._halves) for module in modules]
        if len({(each.kind, each.group) for each in found}) > 1:
            found = [_read(module, self._halves, plain=True) for module in modules]
        for module in modules:
            for name in ("weight", "scales", "biases", "bias"):
                module.pop(name, None)
        return found

    def _matrix(self, rows: _Rows, outputs: int) -> Matrix:
        weight, scales, bias = _panels(rows.weight), rows.scales, rows.bias
        at_scales = None
        if scales is not None:
            at_scales = self._kept.at(_panels(scales))
        at_bias = None if bias is None else self._kept.at(_filled(bias))
        return Matrix(self._kept.at(weight), at_scales, at_bias, rows.kind, outputs, rows.inputs, rows.group)


def fits(module: Any, *, table: bool = False) -> bool:
    """Whether such a module can become a Matrix. table: of tokens, whose number may be any."""
    if type(module) in (QuantizedLinear, QuantizedEmbedding):
        affine = module.mode == "affine" and module.bits in (4, 8) and "global_scale" not in module
        outputs, inputs = module.weight.shape[0], module.scales.shape[1] * module.group_size
        return affine and inputs % PANEL == 0 and (table or outputs % PANEL == 0)
    if type(module) not in (Linear, Embedding):
        return False
    outputs, inputs = module.weight.shape
    return (
        module.weight.dtype in (mx.float32, mx.float16, mx.bfloat16)
        and inputs % PANEL == 0
        and (table or outputs % PANEL == 0)
    )


def _read(module: Any, halves: bool, *, plain: bool = False) -> _Rows:
    """plain: as float32, whatever it is."""
    bias = np.array(module.bias.astype(mx.float32)) if "bias" in module else None
    quantized = type(module) in (QuantizedLinear, QuantizedEmbedding)
    if quantized and not plain:
        pairs = mx.stack([module.scales, module.biases], axis=-1).astype(mx.float32)
        scales, wide = narrow(np.array(pairs), halves)
        kind = _QUANTIZED[module.bits, wide]
        inputs = module.scales.shape[1] * module.group_size
        return _Rows(kind, np.array(module.weight), scales, bias, module.group_size, inputs)
    weight = _dequantized(module) if quantized else module.weight
    inputs = weight.shape[1]
    if not plain and weight.dtype == mx.bfloat16:
        return _Rows(_BFLOAT16, np.array(weight.view(mx.uint16)), None, bias, 0, inputs)
    numbers, whole = narrow(np.array(weight.astype(mx.float32)), halves and not plain)
    return _Rows(_FLOAT32 if whole else _FLOAT16, numbers, None, bias, 0, inputs)


def _dequantized(module: Any) -> mx.array:
    scales, biases = (module[name].astype(mx.float32) for name in ("scales", "biases"))
    return mx.dequantize(module.weight, scales, biases, group_size=module.group_size, bits=module.bits)


def narrow(numbers: Array, halves: bool) -> tuple[Array, bool]:
    """As float16 where that changes none of them, and whether it does."""
    if halves:
        with np.errstate(over="ignore"):
            narrow = numbers.astype(np.float16)
        if np.array_equal(narrow.astype(np.float32), numbers):
            return narrow, False
    return numbers, True


def _panelled(rows: _Rows) -> _Rows:
    """Each array (outputs, …) as (panels, PANEL, …)."""
    cut = [None if each is None else each.reshape(-1, PANEL, *each.shape[1:]) for each in (rows.scales, rows.bias)]
    return replace(rows, weight=rows.weight.reshape(-1, PANEL, rows.weight.shape[1]), scales=cut[0], bias=cut[1])


def _joined(parts: Sequence[_Rows], axis: int) -> _Rows:
    """Behind each other along an axis, and then an output in each row again. A bias that is lacking is 0."""
    biased = any(part.bias is not None for part in parts)
    biases = [np.zeros(part.weight.shape[:-1], np.float32) if part.bias is None else part.bias for part in parts]
    first = parts[0]
    weight = np.concatenate([part.weight for part in parts], axis=axis)
    scales = None
    if first.scales is not None:
        scales = np.concatenate([part.scales for part in parts if part.scales is not None], axis=axis)
        scales = scales.reshape(-1, *scales.shape[-2:])
    bias = np.concatenate(biases, axis=axis).reshape(-1) if biased else None
    return replace(first, weight=weight.reshape(-1, weight.shape[-1]), scales=scales, bias=bias)


def _filled(array: Array) -> Array:
    """With rows of zeros up to a whole number of panels."""
    return np.pad(array, [(0, -len(array) % PANEL), *[(0, 0)] * (array.ndim - 1)])


def _panels(array: Array) -> Array:
    """(outputs, …) -> (panels, …, PANEL), contiguous."""
    filled = _filled(array)
    return np.ascontiguousarray(np.moveaxis(filled.reshape(-1, PANEL, *filled.shape[1:]), 1, -1))
