"""Makes a loaded mlx-lm model plain float32, module by module: the only form that MLX's CPU backend computes fast.

Knows the modules that mlx and mlx-lm quantize with; knows no architecture.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

_PACKED = ("weight", "scales", "biases", "bias")


def to_float32(network: Any) -> None:
    """Undo quantization and cast what is half precision, one module at a time, so that both forms never stand whole.

    A module that is quantized in another way stays as it is: slow, but right. Evaluates all it touches.
    """
    known: dict[int, Any] = {}

    def plain(module: Any) -> Any:
        # A module that stands in two places is one afterwards too.
        if id(module) not in known:
            known[id(module)] = _plain(module)
        return known[id(module)]

    network.update_modules(tree_map(plain, network.leaf_modules(), is_leaf=Module.is_module))
    _cast(network)


def _plain(module: Any) -> Any:
    """The module with its weight dequantized, from float32 scales; the packed one is emptied. Others as they are."""
    made: Any
    if "global_scale" in module:
        return module
    if type(module) is QuantizedLinear:
        made = Linear(1, 1, bias=False)
    elif type(module) is QuantizedEmbedding:
        made = Embedding(1, 1)
    elif type(module) is QuantizedSwitchLinear:
        made = SwitchLinear(1, 1, 1, bias=False)
    else:
        return module
    scales, biases = module.scales, module.get("biases")
    made.weight = mx.dequantize(
        module.weight,
        scales.astype(mx.float32) if mx.issubdtype(scales.dtype, mx.floating) else scales,
        None if biases is None else biases.astype(mx.float32),
        group_size=module.group_size,
        bits=module.bits,
        mode=module.mode,
        dtype=mx.float32,
    )
    if "bias" in module:
        made.bias = module.bias.astype(mx.float32)
    mx.eval(made.parameters())
    for key in _PACKED:
        module.pop(key, None)
    return made


def _cast(network: Any) -> None:
    pairs: Any = tree_flatten(network.parameters())
    while pairs:
        key, array = pairs.pop()
        if mx.issubdtype(array.dtype, mx.floating) and array.dtype != mx.float32:
            cast = array.astype(mx.float32)
            mx.eval(cast)
            network.update(tree_unflatten([(key, cast)]))
