"""Adapters in compiled layers: which token has whose, and where the matrices of each lie.

Knows the structures of network.cpp; what an adapter is, workers/llm/adapters says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from mlx.nn.layers.base import Module

from workers.llm.adapters.files import Pair
from workers.llm.adapters.serving import BASE, Serving

SITES = tuple(f"self_attn.{name}_proj" for name in "qkvo") + tuple(
    f"mlp.{name}_proj" for name in ("gate", "up", "down")
)
"""Of a layer, in network.cpp's order."""

_PAIR = np.dtype([(name, np.int64) for name in ("a", "b", "rank")])


class Adapters:
    """All that are attached to one network's layers."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._serving: Serving | None = None
        self._pairs: dict[str, npt.NDArray[Any]] = {}
        """By adapter: (layers, sites) of _PAIR."""
        self._held: dict[tuple[str, int], list[npt.NDArray[np.float32]]] = {}
        """What they point at."""

    def put(self, key: str, layer: int, pairs: Mapping[int, Pair], serving: Serving) -> None:
        """pairs: by site. serving: knows whose pass it is."""
        self._serving = serving
        table = self._pairs.setdefault(key, np.zeros((self._layers, len(SITES)), _PAIR))
        held = self._held.setdefault((key, layer), [])
        for site, pair in pairs.items():
            a, b = np.array(pair.a), np.array(pair.b)
            held += [a, b]
            table[layer, site] = a.ctypes.data, b.ctypes.data, a.shape[1]

    def drop(self, key: str, layer: int) -> None:
        """Also of one that is not there."""
        if self._held.pop((key, layer), None) is not None:
            self._pairs[key][layer] = 0
            if not any(held == key for held, _ in self._held):
                del self._pairs[key]

    def of(self, rows: int) -> npt.NDArray[np.int32]:
        """Which adapter each row of the pass has, by its place among `pointers`; -1: none."""
        keys = self._serving.keys if self._serving is not None else ()
        places = {key: place for place, key in enumerate(self._pairs)}
        return np.array([places.get(key, -1) for key in keys or (BASE,) * rows], np.int32)

    def pointers(self) -> npt.NDArray[np.int64]:
        """Where the pairs of each adapter lie."""
        return np.array([table.ctypes.data for table in self._pairs.values()], np.int64)


class Block(Module):
    """A layer of which nothing but its place and its sizes is left."""

    def __init__(self, index: int, block: Any, adapters: Adapters) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        own, mlp = block.self_attn, block.mlp
        outs = [len(each.weight) for each in (own.q_proj, own.k_proj, own.v_proj, own.o_proj)]
        hidden, width = len(mlp.gate_proj.weight), outs[3]
        self.use_sliding = False
        self._index, self._adapters = index, adapters
        ins = (width, width, width, outs[0], width, width, hidden)
        self._sizes = dict(zip(SITES, zip(ins, (*outs, hidden, hidden, width), strict=True), strict=True))

    def site(self, name: str, serving: Serving) -> LayerSite:
        return LayerSite(name, self._index, self._sizes, self._adapters, serving)


class LayerSite:
    """The seven linear layers of a compiled layer, as adapters/sites.py's Site."""

    def __init__(
        self, name: str, index: int, sizes: Mapping[str, tuple[int, int]], adapters: Adapters, serving: Serving
    ) -> None:
        self._prefix = f"{name}."
        self.sizes = {self._prefix + each: size for each, size in sizes.items()}
        self._index, self._adapters, self._serving = index, adapters, serving

    def attach(self, key: str, pairs: Mapping[str, Pair]) -> None:
        if pairs:
            given = {SITES.index(name.removeprefix(self._prefix)): pair for name, pair in pairs.items()}
            self._adapters.put(key, self._index, given, self._serving)

    def detach(self, key: str) -> None:
        self._adapters.drop(key, self._index)
