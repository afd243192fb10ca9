"""Which files of a folder make a Whisper model, and what its configuration says. Imports no mlx.

Knows the MLX layout (weights.safetensors, weights.npz, model.safetensors) and transformers' (model.safetensors, one
file or shards); knows no network. Pickled weights are never opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from protocol.errors import ModelNotConfigured
from workers.configuration import parts_of, read_object

_KIND = "Whisper model"
CONFIG = "config.json"
GENERATION = "generation_config.json"
INDEX = "model.safetensors.index.json"
WHOLE = ("weights.safetensors", "weights.npz", "model.safetensors")
"""A model's one file, the first that is there."""

_TRANSFORMERS = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}
"""ModelDimensions by the names in transformers' configuration."""


class Description(msgspec.Struct, frozen=True):
    """What a folder holds, before a weight is read."""

    dims: dict[str, int]
    weights: tuple[Path, ...]
    quantization: dict[str, Any] | None
    """Of the MLX layout: bits, group_size, mode and exceptions by module name."""
    alignment_heads: tuple[tuple[int, int], ...]
    """From generation_config.json; empty where it has none."""


def choose(names: Iterable[str]) -> tuple[str, ...]:
    """Of a repository's file names those that a model needs; empty when it has no weights that can be read."""
    there = set(names)
    for name in WHOLE:
        if name in there:
            return (name, *sorted(there & {CONFIG, GENERATION}))
    if INDEX in there:
        shards = sorted(name for name in there if name.startswith("model-") and name.endswith(".safetensors"))
        return (INDEX, *shards, *sorted(there & {CONFIG, GENERATION}))
    return ()


def describe(folder: Path, name: str) -> Description:
    """Read the configuration and find the weights. Raises ModelNotConfigured, calling the model `name`."""
    config = read_object(folder / CONFIG, name, _KIND)
    generation = read_object(folder / GENERATION, name, _KIND) if (folder / GENERATION).is_file() else {}
    return Description(
        dimensions(config, name), _weights(folder, name), _quantization(config, name), _heads(generation)
    )


def dimensions(config: Mapping[str, Any], name: str) -> dict[str, int]:
    """ModelDimensions from either layout's configuration. Raises ModelNotConfigured when it is no Whisper model."""
    if config.get("model_type", "whisper") != "whisper":
        raise ModelNotConfigured(f"{name} is no Whisper model but {str(config['model_type'])[:40]!r}")
    names = {key: key for key in _TRANSFORMERS} if "n_mels" in config else _TRANSFORMERS
    missing = sorted({source for source in names.values() if not isinstance(config.get(source), int)})
    if len(missing) == len(set(names.values())):
        raise ModelNotConfigured(f"{name} is no Whisper model: its {CONFIG} names none of Whisper's dimensions")
    if missing:
        raise ModelNotConfigured(f"{name}: {CONFIG} lacks {', '.join(missing)}")
    return {key: int(config[source]) for key, source in names.items()}


def is_whisper(folder: Path) -> bool:
    """Whether a folder's configuration is that of a Whisper model and its weights are all there."""
    try:
        describe(folder, folder.name)
    except ModelNotConfigured:
        return False
    return True


def _weights(folder: Path, name: str) -> tuple[Path, ...]:
    for whole in WHOLE:
        if (folder / whole).is_file():
            return (folder / whole,)
    if not (folder / INDEX).is_file():
        raise ModelNotConfigured(f"{name} has no weights: none of {', '.join((*WHOLE, INDEX))} is there")
    files = sorted(parts_of(folder / INDEX, name, _KIND))
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise ModelNotConfigured(f"{name} is incomplete: {missing[0]} is missing")
    return tuple(folder / file for file in files)


def _quantization(config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    found = config.get("quantization") or config.get("quantization_config")
    if found is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("bits"), int) or "quant_method" in found:
        raise ModelNotConfigured(f"{name} is quantized in a way that MLX does not know")
    return found


def _heads(generation: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    found = generation.get("alignment_heads")
    if not isinstance(found, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in found):
        return ()
    return tuple((int(layer), int(head)) for layer, head in found)
