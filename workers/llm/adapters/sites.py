"""Where in a network adapters can stand: the linear layers of its blocks, mlx-lm's modules and the compiled ones.

Knows modules and their sizes; knows no adapter's file. While nothing stands at a site, the network has its own module
there, untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedLinear

from workers.llm.adapters.files import Pair
from workers.llm.adapters.serving import AdaptedLinear, Additions, Serving
from workers.llm.cpu.adapted import Block
from workers.llm.cpu.linear import CpuLinear


class Site(Protocol):
    """One or several linear layers that are computed together."""

    @property
    def sizes(self) -> Mapping[str, tuple[int, int]]:
        """By name: (in, out)."""

    def attach(self, key: str, pairs: Mapping[str, Pair]) -> None:
        """An adapter's additions to some of the layers here, whose sizes were checked. Cannot fail."""

    def detach(self, key: str) -> None:
        """Also of one that is not there."""


class ModuleSite:
    """A linear module anywhere in a network."""

    def __init__(self, network: Any, name: str, module: Any, serving: Serving) -> None:
        self.sizes = {name: _size(module)}
        self._network = network
        self._name = name
        self._module = module
        self._additions = Additions(serving)

    def attach(self, key: str, pairs: Mapping[str, Pair]) -> None:
        if self._name not in pairs:
            return
        if not self._additions:
            self._stand(AdaptedLinear(self._module, self._additions))
        self._additions.put(key, pairs[self._name])

    def detach(self, key: str) -> None:
        if self._additions:
            self._additions.drop(key)
            if not self._additions:
                self._stand(self._module)

    def _stand(self, module: Any) -> None:
        """`module` is the one that the network uses."""
        *steps, last = self._name.split(".")
        parent = self._network
        for step in steps:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]
        if isinstance(parent, list):
            parent[int(last)] = module
        else:
            parent[last] = module


def sites(network: Any, serving: Serving) -> list[Site]:
    """All of a network whose adapters are all detached. What makes logits is not among them: it is computed for
    positions of several rows at once."""
    found: list[Site] = []
    blocks = {id(module) for block in network.layers for module in block.modules()}
    for name, module in network.named_modules():
        if id(module) not in blocks:
            continue
        if isinstance(module, Block):
            found.append(module.site(name, serving))
        elif isinstance(module, Linear | QuantizedLinear | CpuLinear):
            found.append(ModuleSite(network, name, module, serving))
    return found


def _size(module: Any) -> tuple[int, int]:
    """(in, out)."""
    if isinstance(module, CpuLinear):
        return module.ins, module.outs
    outs, ins = module.weight.shape
    return (ins * 32 // module.bits if isinstance(module, QuantizedLinear) else ins), outs
