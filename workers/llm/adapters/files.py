"""A folder with a LoRA adapter, mlx-lm's or PEFT's, as pairs of matrices by the names of linear layers.

Knows both formats and what can be wrong with them; knows no network. mlx-lm: adapters.safetensors, whose `lora_a`
(in, rank) and `lora_b` (rank, out) are multiplied in this order. PEFT: adapter_model.safetensors, whose matrices are
the transposed ones.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from protocol.errors import InvalidValue
from workers import safetensors

CONFIG = "adapter_config.json"
MLX_LM = "adapters.safetensors"
PEFT = "adapter_model.safetensors"

MOST_CONFIG_BYTES = 1 << 20
MOST_RANK = 1024

_OF_MLX_LM = re.compile(r"(?P<layer>.+)\.lora_(?P<part>[ab])")
_OF_PEFT = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")


@dataclass(frozen=True)
class Pair:
    """What one linear layer adds to its result: x a b. Float32; the scale is in `b`."""

    a: mx.array
    """(in, rank)."""
    b: mx.array
    """(rank, out)."""


@dataclass(frozen=True)
class Contents:
    """An adapter whose numbers are finite and evaluated."""

    pairs: dict[str, Pair]
    """By the layers' names in the network."""
    rank: int
    scale: float
    size_bytes: int


@dataclass(frozen=True)
class _Layer:
    """A layer's two matrices as they lie in the file, perhaps not read yet: (in, rank) and (rank, out)."""

    a: mx.array
    b: mx.array
    rank: int
    scale: float


Sizes = Mapping[str, tuple[int, int]]
"""Of the linear layers that can have an adapter: (in, out)."""


def read(folder: Path, path: str, sizes: Sizes) -> Contents:
    """Read and check all of it. Raises InvalidValue, which calls the folder `path` and names the layer at fault."""
    wrong = _Wrong(path)
    config = _config(folder, wrong)
    peft = "peft_type" in config or not (folder / MLX_LM).exists()
    file = folder / (PEFT if peft else MLX_LM)
    tensors = _tensors(file, wrong)
    layers = _peft(tensors, config, wrong) if peft else _mlx_lm(tensors, config, wrong)
    if not layers:
        raise wrong(f"{file.name} has no matrices")
    for name, layer in layers.items():
        _check(name, layer, sizes, wrong)
    first = next(iter(layers.values()))
    return Contents(
        _read(layers, wrong), max(layer.rank for layer in layers.values()), first.scale, file.stat().st_size
    )


@dataclass(frozen=True)
class _Wrong:
    """Makes the refusal of the adapter called `path`."""

    path: str

    def __call__(self, what: str) -> InvalidValue:
        return InvalidValue(f"the adapter {self.path[:100]!r} cannot be mounted: {what}", param="path")


def _config(folder: Path, wrong: _Wrong) -> dict[str, Any]:
    file = folder / CONFIG
    # Whoever opens a pipe waits for its other end.
    if not file.is_file():
        raise wrong(f"it has no {CONFIG}")
    if file.stat().st_size > MOST_CONFIG_BYTES:
        raise wrong(f"{CONFIG} is larger than {MOST_CONFIG_BYTES} bytes")
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise wrong(f"{CONFIG} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise wrong(f"{CONFIG} is no JSON") from error
    if not isinstance(found, dict):
        raise wrong(f"{CONFIG} holds no object")
    return found


def _tensors(file: Path, wrong: _Wrong) -> dict[str, mx.array]:
    """By name, not read yet."""
    if not file.is_file():
        raise wrong(f"it has neither {MLX_LM} nor {PEFT}" if file.name == PEFT else f"it has no {file.name}")
    try:
        if not safetensors.whole(file):
            raise wrong(f"{file.name} is incomplete or no safetensors file")
        found: Any = mx.load(str(file))
    except OSError as error:
        raise wrong(f"{file.name} cannot be read ({error.strerror})") from error
    except (RuntimeError, ValueError) as error:
        raise wrong(f"{file.name} is no safetensors file that can be read") from error
    # As it comes the order is any.
    return dict(sorted(found.items()))


def _mlx_lm(tensors: Mapping[str, mx.array], config: Mapping[str, Any], wrong: _Wrong) -> dict[str, _Layer]:
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise wrong(f"{CONFIG}: fine_tune_type {str(kind)[:40]!r} is not supported; lora is")
    parameters = config.get("lora_parameters")
    if not isinstance(parameters, dict):
        raise wrong(f"{CONFIG} has no object lora_parameters")
    rank = _rank(parameters.get("rank"), "lora_parameters.rank", wrong)
    scale = _number(parameters.get("scale"), "lora_parameters.scale", wrong)
    pairs = _paired(tensors, _OF_MLX_LM, wrong)
    return {name: _Layer(a, b, rank, scale) for name, (a, b) in pairs.items()}


def _peft(tensors: Mapping[str, mx.array], config: Mapping[str, Any], wrong: _Wrong) -> dict[str, _Layer]:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise wrong(f"{CONFIG}: peft_type {str(kind)[:40]!r} is not supported; LORA is")
    for name, plain in (("use_dora", False), ("bias", "none"), ("modules_to_save", None), ("layer_replication", None)):
        if (config.get(name) or plain) != plain:
            raise wrong(f"{CONFIG}: {name} {str(config[name])[:40]!r} is not supported")
    rank = _rank(config.get("r"), "r", wrong)
    alpha = _number(config.get("lora_alpha"), "lora_alpha", wrong)
    ranks, alphas = (_pattern(config, name, wrong) for name in ("rank_pattern", "alpha_pattern"))
    root = bool(config.get("use_rslora"))
    layers = {}
    for name, (a, b) in _paired(tensors, _OF_PEFT, wrong).items():
        own = _rank(_matching(ranks, name, rank), f"rank_pattern of {name}", wrong)
        strength = _number(_matching(alphas, name, alpha), f"alpha_pattern of {name}", wrong)
        layers[name] = _Layer(a.T, b.T, own, strength / (math.sqrt(own) if root else own))
    return layers


def _rank(value: Any, name: str, wrong: _Wrong) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_RANK:
        raise wrong(f"{CONFIG}: {name} must be a whole number from 1 to {MOST_RANK}, not {str(value)[:40]!r}")
    return value


def _number(value: Any, name: str, wrong: _Wrong) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong(f"{CONFIG}: {name} must be a number, not {str(value)[:40]!r}")
    return float(value)


def _pattern(config: Mapping[str, Any], name: str, wrong: _Wrong) -> dict[str, Any]:
    found = config.get(name) or {}
    if not isinstance(found, dict):
        raise wrong(f"{CONFIG}: {name} must be an object")
    return found


def _matching(pattern: Mapping[str, Any], layer: str, default: float) -> Any:
    """The value of the first member that the layer's name is, or ends with after a dot, as PEFT looks it up."""
    for name, value in pattern.items():
        try:
            if re.fullmatch(rf"(.*\.)?({name})", layer):
                return value
        except re.error:
            continue
    return default


def _paired(
    tensors: Mapping[str, mx.array], names: re.Pattern[str], wrong: _Wrong
) -> dict[str, tuple[mx.array, mx.array]]:
    """The two matrices of each layer, as they lie in the file."""
    parts: dict[str, dict[str, mx.array]] = {}
    for name, array in tensors.items():
        found = names.fullmatch(name)
        if found is None:
            raise wrong(f"{name[:200]} is no part of a LoRA adapter for linear layers")
        if array.ndim != 2:
            raise wrong(f"{found['layer']}: only adapters of plain linear layers are supported")
        parts.setdefault(found["layer"], {})[found["part"].lower()] = array
    for layer, pair in parts.items():
        if len(pair) < 2:
            raise wrong(f"{layer}: one of its two matrices is missing")
    return {layer: (pair["a"], pair["b"]) for layer, pair in parts.items()}


def _check(name: str, layer: _Layer, sizes: Sizes, wrong: _Wrong) -> None:
    """Whether the network has the layer, and this fits it. Raises InvalidValue."""
    if name not in sizes:
        raise wrong(f"{name}: the model has no such linear layer in its blocks")
    ins, outs = sizes[name]
    wanted = (ins, layer.rank), (layer.rank, outs)
    if (layer.a.shape, layer.b.shape) != wanted:
        raise wrong(
            f"{name}: its matrices are {_shown(layer.a.shape)} and {_shown(layer.b.shape)}, but the model and rank "
            f"{layer.rank} need {_shown(wanted[0])} and {_shown(wanted[1])}"
        )
    for array in (layer.a, layer.b):
        if not mx.issubdtype(array.dtype, mx.floating):
            raise wrong(f"{name}: its numbers are {array.dtype}, not floating-point")


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


def _read(layers: Mapping[str, _Layer], wrong: _Wrong) -> dict[str, Pair]:
    """The numbers themselves."""
    pairs = {
        name: Pair(mx.contiguous(layer.a.astype(mx.float32)), mx.contiguous(layer.b.astype(mx.float32) * layer.scale))
        for name, layer in layers.items()
    }
    fine = {name: mx.all(mx.isfinite(pair.a)) & mx.all(mx.isfinite(pair.b)) for name, pair in pairs.items()}
    try:
        mx.eval(fine, [(pair.a, pair.b) for pair in pairs.values()])
    except RuntimeError as error:
        raise wrong("its weights cannot be read") from error
    for name, each in fine.items():
        if not each.item():
            raise wrong(f"{name}: its weights are not all finite")
    return pairs
