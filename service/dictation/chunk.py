"""One piece of a dictation as it was sent: what its Content-Type says it is, and whether it can be that.

Knows the words of the header; converts nothing and writes nothing.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec

from protocol.errors import EmptyAudio, InvalidValue
from protocol.jobs import Raw

MAX_RAW_BYTES = 4 << 20

MAX_MAGNITUDE = 16.0
"""Full scale is 1. Louder floats are no recording, but integers that were taken for floats."""

FLOAT = "float32"
BARE = ("application/octet-stream", "audio/raw", "audio/x-raw", "audio/vnd.raw")
"""Types of bytes without a container: raw audio if a parameter says float32, else files like all others."""

HOW = (
    "name what it is in Content-Type, as in audio/pcm;encoding=s16le;rate=16000;channels=1 "
    "(encoding: s16le, s16be or f32le; audio/pcm alone is f32le, 16000 Hz, mono)"
)

ENCODINGS: tuple[str, ...] = get_args(get_type_hints(Raw)["encoding"])
RATES = range(8_000, 48_001)
CHANNELS = range(1, 3)

_PARAMETER = re.compile(r'\s*;\s*(?:([^\s;="]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;"]*?)|([^;=]*?))\s*(?=;|$)')
_SHOWN = 100

# The high bytes of floats under 8 in magnitude, whatever their sign.
_SMALL = bytes(high for high in range(256) if high & 0x7F <= 0x40)


@dataclass(frozen=True)
class Chunk:
    """`raw` says what `data` is. None: a complete encoded file, in `data` or, if it was large, at `path`."""

    raw: Raw | None
    data: bytes = b""
    path: Path | None = None


def raw_of(content_type: str | None) -> Raw | None:
    """The format that a Content-Type names; None for a complete encoded file.

    Raises InvalidValue for a parameter that is wrong. Parameters that mean nothing here are passed over.
    """
    essence, _, _ = (content_type or "").partition(";")
    named = essence.strip().lower()
    rest = (content_type or "")[len(essence) :]
    if named == "audio/l16":
        given = _parameters(rest)
        if given.get("encoding", "s16be").lower() != "s16be":
            raise _wrong("encoding", given["encoding"], "s16be for audio/l16; audio/pcm takes others")
        return _raw("s16be", given)
    if named in ("audio/pcm", "audio/l32") or FLOAT in named or (named in BARE and FLOAT in rest.lower()):
        given = _parameters(rest)
        encoding = given.get("encoding", "f32le").lower()
        encoding = "f32le" if encoding == FLOAT else encoding
        if encoding not in ENCODINGS:
            raise _wrong("encoding", given["encoding"], "one of " + ", ".join(ENCODINGS))
        return _raw(encoding, given)
    return None


def check(raw: Raw | None, data: bytes) -> None:
    """Raises InvalidValue for bytes that cannot be `raw`, EmptyAudio for a file of none. No samples at all are fine."""
    if raw is None:
        if not data:
            raise EmptyAudio("the chunk is empty, and an encoded file of 0 bytes holds no audio")
        return
    if len(data) % raw.frame_bytes:
        frame = f"{raw.frame_bytes} bytes of a frame ({raw.encoding}, channels={raw.channels})"
        raise InvalidValue(f"the chunk's {len(data)} bytes are no multiple of the {frame}: {HOW}")
    if raw.encoding == "f32le" and not _audible(data):
        raise InvalidValue(f"the chunk was read as f32le, but has samples that are no number or over 16: {HOW}")


def _audible(data: bytes) -> bool:
    """Whether little-endian floats are all numbers of at most MAX_MAGNITUDE."""
    if not data[3::4].translate(None, _SMALL):
        return True
    samples = array("f", data)
    if sys.byteorder == "big":
        samples.byteswap()
    return all(-MAX_MAGNITUDE <= sample <= MAX_MAGNITUDE for sample in samples)


def _raw(encoding: str, given: Mapping[str, str]) -> Raw:
    fields = {
        "encoding": encoding,
        "rate": _integer("rate", given, 16_000, RATES),
        "channels": _integer("channels", given, 1, CHANNELS),
    }
    return msgspec.convert(fields, Raw)


def _integer(name: str, given: Mapping[str, str], default: int, allowed: range) -> int:
    text = given.get(name)
    if text is None:
        return default
    # No number of the allowed ones has more digits; int() of a very long text would take long.
    if not (text.isascii() and text.isdecimal() and len(text) <= 9) or int(text) not in allowed:
        raise _wrong(name, text, f"an integer from {allowed.start} to {allowed.stop - 1}")
    return int(text)


def _parameters(text: str) -> dict[str, str]:
    """The parameters by name in lower case, unquoted. Raises InvalidValue for what is none and for one given twice."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None:
            raise _malformed(text[at:])
        name, value, other = match.groups()
        at = match.end()
        if name is None:
            if other:
                raise _malformed(other)
            continue
        name = name.lower()
        if name in found:
            raise InvalidValue(f"Content-Type gives {name[:_SHOWN]} twice", param=name[:_SHOWN])
        found[name] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
    return found


def _malformed(text: str) -> InvalidValue:
    return InvalidValue(
        f"{text.strip(' ;')[:_SHOWN]!r} in Content-Type is no parameter; they are written name=value, as in rate=16000"
    )


def _wrong(name: str, value: str, allowed: str) -> InvalidValue:
    return InvalidValue(f"{name} {value[:_SHOWN]!r} in Content-Type is not allowed; it is {allowed}", param=name)
