"""Which files of a folder make a language model that mlx-lm reads, and what its configuration says.

Knows the layout that mlx-lm and transformers share (config.json, model*.safetensors, a tokenizer); knows no network.
Neither pickled weights nor code that comes with a model is ever opened.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from protocol.errors import ModelNotConfigured
from workers import safetensors
from workers.configuration import parts_of, read_object
from workers.llm import pooling

_KIND = "language model"
CONFIG = "config.json"
GENERATION = "generation_config.json"
INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

_TOKENIZERS = (TOKENIZER, "tokenizer.model", "vocab.json", "tiktoken.model")
"""Any of these is a tokenizer; transformers makes the rest of it."""
_BESIDE = {
    CONFIG,
    GENERATION,
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "hf_quant_config.json",
    *_TOKENIZERS,
}
"""Small files that say how the weights and the tokenizer are to be used."""

_WINDOWS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
"""How configurations call the longest sequence."""
DEFAULT_CONTEXT = 4096
"""Tokens, where a configuration has none of them."""


class Defaults(msgspec.Struct, frozen=True):
    """How the model's makers would have it sampled; None where they say nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


class Description(msgspec.Struct, frozen=True):
    """What a folder holds, before a weight is read."""

    config: dict[str, Any]
    weights: tuple[Path, ...]
    context_window: int
    """Tokens of prompt and answer together."""
    defaults: Defaults


def choose(names: Iterable[str]) -> tuple[str, ...]:
    """Of a repository's file names those that a model needs; empty when it has no weights that could be read."""
    there = set(names)
    if WHOLE in there:
        weights = {WHOLE}
    else:
        weights = {name for name in there if name.startswith("model-") and name.endswith(".safetensors")}
        weights |= {INDEX} & there if weights else set()
    return tuple(sorted(weights | (there & _BESIDE) | pooling.choose(there))) if weights else ()


def describe(folder: Path, name: str) -> Description:
    """Read the configuration and find weights and tokenizer. Raises ModelNotConfigured, calling the model `name`."""
    config = read_object(folder / CONFIG, name, _KIND)
    check(config, name)
    if not any((folder / each).is_file() for each in _TOKENIZERS) and not list(folder.glob("*.tiktoken")):
        raise ModelNotConfigured(f"{name} has no tokenizer: none of {', '.join(_TOKENIZERS)} is there")
    generation = read_object(folder / GENERATION, name, _KIND) if (folder / GENERATION).is_file() else {}
    return Description(config, weights(folder, name), _window(config), _defaults(generation))


def check(config: Mapping[str, Any], name: str) -> None:
    """Raises ModelNotConfigured when a configuration is of no language model that could be loaded, as far as seen."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise ModelNotConfigured(f"{name} is no language model: its {CONFIG} names no model_type")
    if kind == "whisper":
        raise ModelNotConfigured(f"{name} is a speech model, not a language model")
    if config.get("model_file") is not None:
        raise ModelNotConfigured(f"{name} needs code that comes with it, and such code is never run")
    if not _known(kind):
        raise ModelNotConfigured(f"{name} is no language model that mlx-lm knows but {kind[:40]!r}")


def _known(kind: str) -> bool:
    """Whether mlx-lm has the architecture, under this name or another. Imports it only for another."""
    found = importlib.util.find_spec("mlx_lm")
    places = found.submodule_search_locations if found else None
    if kind.isidentifier() and any((Path(place) / "models" / f"{kind}.py").is_file() for place in places or ()):
        return True
    from mlx_lm.utils import MODEL_REMAPPING

    return kind in MODEL_REMAPPING


def is_llm(folder: Path) -> bool:
    """Whether a folder holds a configuration of a language model, its tokenizer and all of its weights."""
    try:
        describe(folder, folder.name)
    except ModelNotConfigured:
        return False
    return True


def weights(folder: Path, name: str) -> tuple[Path, ...]:
    """All files of a folder's weights. Raises ModelNotConfigured when one is missing or cut."""
    files = sorted(folder.glob("model*.safetensors"))
    if (folder / INDEX).is_file():
        named = {folder / part for part in parts_of(folder / INDEX, name, _KIND)}
        missing = sorted(named - set(files))
        if missing:
            raise ModelNotConfigured(f"{name} is incomplete: {missing[0].name} is missing")
    if not files:
        raise ModelNotConfigured(f"{name} has no weights: neither {WHOLE} nor parts of it are there")
    try:
        damaged = [file for file in files if not safetensors.whole(file)]
    except OSError as error:
        raise ModelNotConfigured(f"{name}: its weights cannot be read ({error.strerror})") from error
    if damaged:
        raise ModelNotConfigured(f"{name}: {damaged[0].name} is incomplete; fetch it again")
    return tuple(files)


def _window(config: Mapping[str, Any]) -> int:
    text = config.get("text_config")
    for source in (config, text if isinstance(text, dict) else {}):
        for key in _WINDOWS:
            found = source.get(key)
            if isinstance(found, int) and not isinstance(found, bool) and found > 0:
                return found
    return DEFAULT_CONTEXT


def _defaults(generation: Mapping[str, Any]) -> Defaults:
    """Values that cannot be meant (a temperature below 0, a top_p over 1) are left out."""
    if generation.get("do_sample") is False:
        return Defaults()

    def number(key: str, low: float, high: float) -> float | None:
        value = generation.get(key)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        return float(value) if usable and value is not None else None

    top_k = number("top_k", 0, 1 << 20)
    return Defaults(number("temperature", 0, 2), number("top_p", 0, 1), None if top_k is None else int(top_k))
