"""Vectors as the body of OpenAI's embeddings. Pure functions of what a worker said."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from protocol.events import Embedded, Read

Format = Literal["float", "base64"]


class Embedding(TypedDict):
    """`embedding`: numbers, or with encoding_format base64 their float32, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class Timings(TypedDict):
    """Milliseconds. `total` is from the end of the request's body; the others are spent in the worker."""

    queue: float
    tokenize: float
    embed: float
    total: float


class Starling(TypedDict):
    """What goes beyond the official API. `adapter`: the one that the vectors were made with."""

    model: str
    adapter: NotRequired[str]
    timings: Timings


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
    starling: Starling


def entries(vectors: Sequence[bytes], form: Format) -> list[msgspec.Raw]:
    """An Embedding for each vector (float32, little-endian), already JSON: megabytes of numbers, one vector at once, so
    that other threads run in between."""
    return [msgspec.Raw(msgspec.json.encode(_entry(index, vector, form))) for index, vector in enumerate(vectors)]


def _entry(index: int, vector: bytes, form: Format) -> Embedding:
    told = (
        base64.b64encode(vector).decode() if form == "base64" else list(struct.unpack(f"<{len(vector) // 4}f", vector))
    )
    return {"object": "embedding", "index": index, "embedding": told}


def body(data: list[msgspec.Raw], model: str, embedded: Embedded, total_s: float) -> dict[str, Any]:
    """An EmbeddingList whose entries are JSON already."""
    timings = {name: round(getattr(embedded.spent, name), 3) for name in Read.__struct_fields__}
    usage: Usage = {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}
    adapter = {} if embedded.adapter is None else {"adapter": embedded.adapter}
    return {
        "object": "list",
        "data": data,
        "model": model,
        "usage": usage,
        "starling": {"model": model, **adapter, "timings": {**timings, "total": round(total_s * 1000, 3)}},
    }
