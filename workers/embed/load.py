"""Turns a model's name into one that makes vectors: an encoder, or a language model that mlx-lm knows.

Knows where models come from and what is wrong with broken ones; knows no job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
from tokenizers import Tokenizer

from protocol import events
from protocol.errors import ModelNotConfigured
from workers.configuration import read_object
from workers.embed import encoder, files
from workers.heap import keep_memory
from workers.llm import files as llm_files
from workers.llm import load as llm
from workers.llm.pooling import describe
from workers.llm.texts import Embedder, Tokens
from workers.source import display_name, find
from workers.streams import cores, new_streams

MOST_STREAMS = 4
"""More were never tried."""
WARM_UP = 64
"""Tokens."""

Report = Callable[[events.Loading], None]


class Loaded(msgspec.Struct, frozen=True):
    """A model whose weights are evaluated, in the thread that called `load`; only that thread may use it."""

    embedder: Embedder
    model: events.Model


def load(
    model: str, *, data_dir: str | Path, offline: bool, report: Report, threads: int = 0, tuned: bool = True
) -> Loaded:
    """Find, fetch or convert `model` and read it. Raises ModelNotConfigured, worded for clients.

    threads: compute streams on a CPU; 0 is one for each core. tuned: on a CPU, in place of mlx's own operations.
    """
    name = display_name(model)
    folder = find(model, "embedding", data_dir=data_dir, offline=offline, report=report)
    config = read_object(folder / llm_files.CONFIG, name, "embedding model")
    files.check(config, name)
    if files.is_encoder(config):
        return _encoder(folder, config, name, report, threads, tuned)
    # Language models that are made for it end each text with a token that has seen all of it.
    loaded = llm.read(folder, name, data_dir=data_dir, report=report, threads=threads, tuned=tuned, pooling="last")
    if loaded.embedder is None:
        # Says what is wrong with the folder, if that is it.
        describe(folder, name)
        raise ModelNotConfigured(f"{name} is a model of a kind that gives no embeddings")
    described = msgspec.structs.replace(
        loaded.model, kind="embedding", context_window=loaded.embedder.tokens.window, gen_defaults=None
    )
    return Loaded(loaded.embedder, described)


def _encoder(folder: Path, config: dict[str, Any], name: str, report: Report, threads: int, tuned: bool) -> Loaded:
    report(events.Loading(f"loading {name}"))
    shape, said = files.shape(config, name), describe(folder, name)
    tokenizer = _tokenizer(folder / llm_files.TOKENIZER, name)
    weights = _weights(folder, config, shape, name)
    steps = encoder.plain()
    if tuned and mx.default_device() == mx.Device(mx.cpu):
        count = min(threads or cores(), MOST_STREAMS)
        steps = encoder.tuned(new_streams(count) if count > 1 else [])
        keep_memory()

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    window = min(said.longest or shape.window, shape.window)
    network = encoder.Encoder(weights, shape, said.pooling or "mean", steps)
    report(events.Loading(f"warming {name} up"))
    network.together([np.zeros(min(WARM_UP, window), np.int32)] * 2)
    described = events.Model(
        id=name,
        kind="embedding",
        languages=(),
        translates=False,
        parameters=_parameters(weights),
        dtype="float32",
        context_window=window,
        embedding_width=shape.width,
    )
    return Loaded(Embedder(network, Tokens(encode, weights.words.shape[0], window)), described)


def _tokenizer(path: Path, name: str) -> Tokenizer:
    """Without the cutting and filling up that its file may ask for."""
    if not path.is_file():
        raise ModelNotConfigured(f"{name} has no {path.name}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelNotConfigured(f"the tokenizer of {name} cannot be loaded: {str(error)[:100]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _weights(folder: Path, config: dict[str, Any], shape: files.Shape, name: str) -> encoder.Weights:
    arrays: dict[str, mx.array] = {}
    try:
        for file in llm_files.weights(folder, name):
            read: Any = mx.load(str(file))
            arrays.update(read)
        quantization = config.get("quantization")
        return encoder.arrange(arrays, shape, quantization if isinstance(quantization, dict) else None)
    except encoder.Missing as error:
        raise ModelNotConfigured(f"{name}: its weights are of another model: {error}") from error
    except (RuntimeError, ValueError) as error:
        raise ModelNotConfigured(f"{name}: its weights cannot be read; fetch them again") from error


def _parameters(weights: encoder.Weights) -> int:
    dense = [part for layer in weights.layers for part in vars(layer).values()]
    arrays = [
        weights.words,
        weights.positions,
        *(array for part in (weights.norm, *dense) for array in vars(part).values()),
    ]
    return sum(array.size for array in arrays)
