"""Llama-like networks computed by network.cpp, over mlx-lm's caches, in place of mlx-lm's layers.

Knows mlx-lm's classes and caches, and the structures of network.cpp; knows no job. The caches' arrays are made room in
by their own methods; what stands there is written by the compiled code, so they are never shared while a pass runs.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.nn.layers.base import Module
from mlx.nn.layers.normalization import RMSNorm
from mlx_lm.models import llama, qwen2, qwen3
from mlx_lm.models.cache import BatchKVCache, KVCache
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE

from workers import native
from workers.cpu.kept import pointer
from workers.cpu.matrices import PANEL, Matrices, Matrix, fits
from workers.llm.cpu.adapted import Adapters, Block
from workers.llm.cpu.angles import Angles
from workers.llm.gaps import GappedKVCache

_HERE = Path(__file__).parent
SOURCES = (_HERE / "network.cpp", *native.HEADERS)

ARCHITECTURES: tuple[Any, ...] = (llama.Model, qwen2.Model, qwen3.Model)

_TOKEN = np.dtype([(name, np.int32) for name in ("row", "position", "first", "column", "adapter")])


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("width", "heads", "key_heads", "size", "hidden", "layers")),
        ("eps", ctypes.c_float),
    )


def install(network: Any, folder: Path, compiler: str, threads: int) -> bool:
    """Have compiled code compute a loaded network; its layers are emptied on the way. False: it is of no kind that the
    code knows, and is as it was. Raises native.NotBuilt, the network being as it was.

    folder: where what is compiled is kept.
    """
    if not _is_known(network):
        return False
    library = native.library(SOURCES, folder, compiler, native.FAST)
    network.model = Inner(network, library, threads)
    if "lm_head" in network:
        network.lm_head = Head(network.model.core, network.model.core.table(network.lm_head))
    return True


class Core:
    """The compiled network and its memory. mlx's Module lists no such thing as its own."""

    def __init__(self, network: Any, library: ctypes.CDLL, threads: int) -> None:
        inner, first = network.model, network.model.layers[0]
        own = first.self_attn
        self.library = library
        self.matrices = Matrices(bool(library.starling_halves()))
        self.width = own.o_proj.weight.shape[0]
        self.key_heads, self.size = own.n_kv_heads, _size(own)
        self.angles = Angles(own.rope, self.size)
        hidden, count = first.mlp.gate_proj.weight.shape[0], len(inner.layers)
        layers = (_Layer * count)()
        for index, block in enumerate(inner.layers):  # one by one, so that the old weights go as the new ones come
            layers[index] = self._layer(block)
        shape = _Shape(self.width, own.n_heads, self.key_heads, self.size, hidden, count, inner.norm.eps)
        library.starling_network.restype = ctypes.c_void_p
        engine = library.starling_network(
            shape, layers, ctypes.c_void_p(self.matrices.array(inner.norm.weight)), threads
        )
        if not engine:
            raise MemoryError("no threads for the language model")
        self.engine = ctypes.c_void_p(engine)
        weakref.finalize(self, library.starling_network_end, self.engine)

    def _layer(self, block: Any) -> _Layer:
        own, mlp, matrices = block.self_attn, block.mlp, self.matrices
        norms = (block.input_layernorm, block.post_attention_layernorm, own.get("q_norm"), own.get("k_norm"))
        return _Layer(
            *(None if norm is None else matrices.array(norm.weight) for norm in norms),
            matrices.stacked([own.q_proj, own.k_proj, own.v_proj]),
            matrices.stacked([own.o_proj]),
            matrices.interleaved([mlp.gate_proj, mlp.up_proj]),
            matrices.stacked([mlp.down_proj]),
        )

    def table(self, module: Any) -> Matrix:
        """Of tokens: what makes vectors of them, or logits."""
        return self.matrices.stacked([module])

    def rows(self, table: Matrix, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """ids (count,) -> their vectors (count, width). Raises IndexError for one that the table does not have."""
        if ids.size and not 0 <= ids.min() <= ids.max() < table.outputs:
            raise IndexError(f"the network has {table.outputs} tokens, and was given {ids.min()} to {ids.max()}")
        found = np.empty((ids.size, table.inputs), np.float32)
        self.library.starling_rows(ctypes.byref(table), ids.size, pointer(ids), pointer(found))
        return found

    def logits(self, table: Matrix, x: mx.array) -> mx.array:
        """(…, width) -> (…, vocabulary)."""
        flat = np.ascontiguousarray(np.array(x.astype(mx.float32), copy=False).reshape(-1, table.inputs))
        found = np.empty((len(flat), table.outputs), np.float32)
        done = self.library.starling_network_logits(
            self.engine, ctypes.byref(table), len(flat), pointer(flat), pointer(found)
        )
        if not done:
            raise MemoryError("not enough memory for a language model's logits")
        return mx.array(found).reshape(*x.shape[:-1], table.outputs)


class Table(Module):
    """The token table as mlx's Embedding."""

    def __init__(self, core: Core, table: Matrix) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._core, self._table = core, table

    def __call__(self, ids: mx.array) -> mx.array:
        """(…,) -> (…, width)."""
        flat = np.array(ids.astype(mx.int32)).reshape(-1)
        return mx.array(self._core.rows(self._table, flat)).reshape(*ids.shape, self._table.inputs)

    def as_linear(self, x: mx.array) -> mx.array:
        """(…, width) -> (…, vocabulary)."""
        return self._core.logits(self._table, x)


class Head(Table):
    """An untied table: what makes logits, called as Linear is."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.as_linear(x)


class Inner(Module):
    """In place of mlx-lm's LlamaModel, whose weights it takes."""

    def __init__(self, network: Any, library: ctypes.CDLL, threads: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        inner = network.model
        adapters = Adapters(len(inner.layers))
        self.layers = [Block(index, block, adapters) for index, block in enumerate(inner.layers)]
        self._adapters = adapters
        self.core = Core(network, library, threads)
        self.embed_tokens = Table(self.core, self.core.table(inner.embed_tokens))

    @property
    def pipeline_layers(self) -> list[Block]:
        """As some of mlx-lm's classes call those of this process."""
        return self.layers

    def __call__(self, inputs: mx.array, cache: Any = None, input_embeddings: mx.array | None = None) -> mx.array:
        """(rows, length) -> (rows, length, width), as mlx-lm's does."""
        x = self.embed_tokens(inputs) if input_embeddings is None else input_embeddings
        rows, length, width = x.shape
        flat = np.array(x.astype(mx.float32)).reshape(-1, width)
        seen = _room(cache, rows, length, self.core.key_heads, self.core.size, len(self.layers))
        seen.laid["adapter"] = np.repeat(self._adapters.of(rows), length)
        self._run(flat, rows, length, seen)
        return mx.array(flat).reshape(rows, length, width)

    def _run(self, x: npt.NDArray[np.float32], rows: int, length: int, seen: _Room) -> None:
        core, adapters = self.core, self._adapters
        cosine, sine = core.angles.upto(int(seen.laid["position"].max()) + 1)
        pairs = adapters.pointers() if (seen.laid["adapter"] >= 0).any() else np.zeros(0, np.int64)
        done = core.library.starling_network_run(
            *(core.engine, rows, length, seen.columns, pointer(seen.laid), pointer(x), pointer(seen.places)),
            *(pointer(cosine), pointer(sine), None if seen.mask is None else pointer(seen.mask)),
            *(pointer(pairs), len(pairs)),
        )
        if not done:
            raise MemoryError("not enough memory for a pass of the language model")


@dataclass(frozen=True)
class _Room:
    """Where a pass finds keys and values, and puts its own."""

    laid: npt.NDArray[Any]
    """(rows * length,) of _TOKEN."""
    columns: int
    places: npt.NDArray[np.int64]
    """(layers, 8): network.cpp's Cache."""
    held: list[npt.NDArray[Any]]
    """What `places` points at. To be let go before the caches grow again, or MLX would copy them."""
    mask: npt.NDArray[np.bool_] | None = None
    """(rows, length, columns); None: every column from a token's first to its own is seen."""


def _room(cache: Any, rows: int, length: int, heads: int, size: int, layers: int) -> _Room:
    laid = np.zeros((rows, length), _TOKEN)
    laid["row"] = np.arange(rows)[:, None]
    if cache is None:
        laid["position"] = laid["column"] = np.arange(length)
        held = [np.empty((rows, heads, length, size), np.float32) for _ in range(2)]
        return _Room(laid.reshape(-1), length, np.array([_place(*held)] * layers), held)
    first, mask = cache[0], None
    start: int
    offset: Any
    if isinstance(first, BatchKVCache):
        start, offset = first._idx, np.array(first.offset)[:, None]
        if isinstance(first, GappedKVCache) and first.gaps.seen is not None:
            mask = np.ascontiguousarray(np.array(first.gaps.mask(length, None))[:, 0])
        else:
            laid["first"] = np.array(first.left_padding)[:, None]
    elif type(first) is KVCache:
        start = offset = first.offset
    else:
        raise TypeError(f"compiled layers have no use for a {type(first).__name__}")
    laid["column"] = start + np.arange(length)
    laid["position"] = np.maximum(offset + np.arange(length), 0)
    held = _grown(cache, (rows, heads, length, size), start + length)
    places = np.array([_place(*held[at : at + 2]) for at in range(0, len(held), 2)])
    return _Room(laid.reshape(-1), start + length, places, held, mask)


def _grown(cache: Sequence[Any], shape: tuple[int, ...], end: int) -> list[npt.NDArray[Any]]:
    """Keys and values of each layer in turn with room for new ones, up to column `end`; what is there is to be written
    over. Room that a cache has is its own: whatever shares its arrays (workers/llm/cache.py) has none."""
    first = cache[0]
    if first.keys is None or first.keys.shape[2] < end:
        for layer in cache:
            # One for each: MLX takes what fills a whole array as that array.
            layer.update_and_fetch(mx.zeros(shape), mx.zeros(shape))
    elif isinstance(first, BatchKVCache):
        offset = first.offset + shape[2]
        for layer in cache:
            layer.offset, layer._idx = offset, end
    else:
        for layer in cache:
            layer.offset = end
    arrays = [array for layer in cache for array in (layer.keys, layer.values)]
    mx.eval(arrays)
    return [np.array(array, copy=False) for array in arrays]


def _place(keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> tuple[int, ...]:
    a, b, c, _ = keys.strides
    d, e, f, _ = values.strides
    at_keys, at_values = (array.__array_interface__["data"][0] for array in (keys, values))
    return at_keys, at_values, a // 4, b // 4, c // 4, d // 4, e // 4, f // 4


def _is_known(network: Any) -> bool:
    """Whether it is one of ARCHITECTURES, in sizes that the code can cut and without a sliding window."""
    if type(network) not in ARCHITECTURES or type(network.model.norm) is not RMSNorm:
        return False
    tables = [network.model.embed_tokens, *([network.lm_head] if "lm_head" in network else [])]
    return all(fits(table, table=True) for table in tables) and all(_fits(block) for block in network.layers)


def _fits(block: Any) -> bool:
    own, mlp = block.self_attn, block.mlp
    linears = (own.q_proj, own.k_proj, own.v_proj, own.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    size = _size(own)
    return (
        not getattr(block, "use_sliding", False)
        and all(fits(each) for each in linears)
        and size % PANEL == 0
        and own.scale == size**-0.5
        and not getattr(own.rope, "traditional", False)
        and not isinstance(own.rope, DynamicNTKScalingRoPE)  # its angles depend on how many are asked for
        and getattr(own.rope, "dims", size) == size
    )


def _size(attention: Any) -> int:
    """Of a head."""
    size: int = attention.k_proj.weight.shape[0] // attention.n_kv_heads
    return size
