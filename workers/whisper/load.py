"""Turns a model's name into a loaded Whisper: a folder, a Hugging Face id or a starter.

Knows where models come from and what must be in them; knows nothing about decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import msgspec
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten, tree_unflatten

from protocol import events
from protocol.errors import ModelNotConfigured
from workers.source import display_name, find
from workers.whisper import files, reference, weights
from workers.whisper.alignment import for_shape

if TYPE_CHECKING:
    from mlx_whisper.whisper import ModelDimensions, Whisper

VOCABULARIES = {51864: 1, 51865: 99, 51866: 100}
"""Languages by vocabulary size: English alone, Whisper's, and with Cantonese (large-v3); the tokenizer has no other."""

_PRUNED = ("turbo", "distil")


class Loaded(msgspec.Struct, frozen=True):
    """A model whose weights are evaluated, in the thread that called `load`."""

    whisper: Whisper
    model: events.Model


def load(
    model: str,
    *,
    data_dir: str | Path,
    offline: bool,
    report: Callable[[events.Loading], None],
    dtype: mx.Dtype,
) -> Loaded:
    """Find, fetch or convert `model` and read it. Weights become `dtype`; float32 undoes a quantization too.

    Raises ModelNotConfigured, worded for clients, when it cannot be had.
    """
    name = display_name(model)
    folder = find(model, "whisper", data_dir=data_dir, offline=offline, report=report)
    report(events.Loading(f"loading {name}"))
    found = files.describe(folder, name)
    if found.dims["n_vocab"] not in VOCABULARIES:
        raise ModelNotConfigured(f"{name}: no tokenizer is known for a vocabulary of {found.dims['n_vocab']}")
    parts = reference.module("whisper")
    whisper = parts.Whisper(parts.ModelDimensions(**found.dims), dtype)
    parameters = sum(math.prod(shape) for shape in _shapes(whisper).values())
    arrays = weights.read(found.weights, name)
    stored = arrays.pop("alignment_heads", None)
    _fill(whisper, arrays, found.quantization, dtype, name)
    _set_alignment_heads(whisper, stored, found.alignment_heads, model)
    mx.eval(whisper.parameters(), whisper.encoder._positional_embedding, whisper.decoder._mask)
    quantized = found.quantization is not None and dtype != mx.float32
    kind = (
        f"{found.quantization['bits']}-bit"
        if quantized and found.quantization
        else str(dtype).removeprefix("mlx.core.")
    )
    return Loaded(whisper, describe(whisper.dims, name, parameters, kind))


def describe(dims: ModelDimensions, name: str, parameters: int, dtype: str) -> events.Model:
    """What the service is told of it."""
    count = VOCABULARIES[dims.n_vocab]
    languages = ("en",) if count == 1 else tuple(reference.module("tokenizer").LANGUAGES)[:count]
    # Turbo and distil have fewer decoder layers than their encoder and were not trained to translate.
    whole = dims.n_text_layer >= dims.n_audio_layer and not any(word in name.lower() for word in _PRUNED)
    return events.Model(
        id=name,
        kind="whisper",
        languages=languages,
        translates=count > 1 and whole,
        parameters=parameters,
        dtype=dtype,
    )


def _fill(
    whisper: Whisper, arrays: weights.Weights, quantization: dict[str, object] | None, dtype: mx.Dtype, name: str
) -> None:
    """Put the arrays into the model, each cast to `dtype`. Raises ModelNotConfigured when they do not fit it."""
    positions = arrays.pop(weights.ENCODER_POSITIONS, None)
    if positions is not None and positions.shape == whisper.encoder._positional_embedding.shape:
        whisper.encoder._positional_embedding = positions.astype(dtype)
    arrays = {key: array for key, array in arrays.items() if not key.rpartition(".")[2].startswith("_")}
    if quantization is not None and dtype == mx.float32:
        arrays = weights.dequantize(arrays, quantization)
    elif quantization is not None:
        quantize(
            whisper,
            class_predicate=lambda path, _: (
                weights.options(quantization, path) if f"{path}.scales" in arrays else False
            ),
        )
    _check(arrays, _shapes(whisper), name)
    try:
        for key in list(arrays):  # one by one, so that the file's copy of each goes as soon as it is cast
            array = arrays.pop(key)
            array = array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array
            mx.eval(array)
            whisper.update(tree_unflatten([(key, array)]))
    except RuntimeError as error:
        raise ModelNotConfigured(f"{name}: its weights cannot be read; fetch them again") from error


def _check(arrays: weights.Weights, expected: dict[str, tuple[int, ...]], name: str) -> None:
    missing = sorted(expected.keys() - arrays.keys())
    if missing:
        raise ModelNotConfigured(f"{name} is incomplete: {_some(missing)} missing from its weights")
    unknown = sorted(arrays.keys() - expected.keys())
    if unknown:
        raise ModelNotConfigured(f"{name} is no Whisper model as its {files.CONFIG} says: it also has {_some(unknown)}")
    wrong = sorted(key for key, array in arrays.items() if tuple(array.shape) != expected[key])
    if wrong:
        raise ModelNotConfigured(
            f"{name}: {wrong[0]} has the shape {tuple(arrays[wrong[0]].shape)} instead of {expected[wrong[0]]}"
        )


def _shapes(whisper: Whisper) -> dict[str, tuple[int, ...]]:
    pairs: Any = tree_flatten(whisper.parameters())
    return {key: tuple(array.shape) for key, array in pairs if key != "alignment_heads"}


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _set_alignment_heads(
    whisper: Whisper, stored: mx.array | None, generated: tuple[tuple[int, int], ...], model: str
) -> None:
    """The heads that the weights, transformers' generation configuration or the published table name, in this order.

    Stored heads that are mlx-whisper's stopgap (every head of the upper half) tell nothing.
    """
    dims = whisper.dims
    stopgap = whisper.alignment_heads.tolist()
    published = for_shape(
        layers=dims.n_text_layer,
        heads=dims.n_text_head,
        encoder_layers=dims.n_audio_layer,
        mels=dims.n_mels,
        multilingual=whisper.is_multilingual,
        name=model,
    )
    kept: Any = stored.tolist() if stored is not None and stored.ndim == 2 and stored.shape[1] == 2 else []
    for heads in (kept, generated, published or ()):
        pairs = [list(pair) for pair in heads]
        if (
            pairs
            and pairs != stopgap
            and all(layer < dims.n_text_layer and head < dims.n_text_head for layer, head in pairs)
        ):
            whisper.alignment_heads = mx.array(pairs, dtype=mx.int32)
            return
