"""What a session writes down as it goes on: one record for each thing that must not be forgotten or done twice.

The session is what these records and its audio make of it; story.py reads them. Knows no file.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from protocol.errors import Kind
from protocol.events import Segment, Timings, VocabularyReport
from protocol.jobs import Span
from protocol.past import Reached
from service.dictation.segmentation import State
from service.transcripts import Meta

Reason = Literal["finished", "expired", "deleted"]
"""Why a session was closed: as its client wished, for want of audio, or because it was removed."""


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The session as its client saw it when it was created."""

    session: dict[str, Any]


class Spoke(msgspec.Struct, frozen=True, tag="spoke"):
    """Speech was heard to start or to stop."""

    started: bool
    at: int
    """Samples."""


class Listened(msgspec.Struct, frozen=True, tag="listened"):
    """How far the audio was listened to, and all that is needed to go on from there."""

    utterances: tuple[Span, ...]
    """Those that were found since the last record of this kind."""
    heard: int
    """Windows of 512 samples."""
    memory: bytes
    """The speech detector's."""
    segmenter: State
    spoke: int
    """How many `Spoke` belong to what was heard so far; later ones are known already and will be found again."""
    vad_ms: float
    """Spent on it since the last record of this kind."""
    ended: bool = False
    """There is no more audio: these are the last utterances."""


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """What the next utterance, or the next window, says: for good."""

    segments: tuple[Segment, ...]
    """In the recording's clock, and with the space before the first that the text before it asks for."""
    language: str | None
    language_probability: float | None
    seconds: float
    """Length of the audio."""
    spent_s: float
    """From the question to the answer."""
    timings: Timings
    vad_ms: float = 0.0
    vocabulary: VocabularyReport | None = None
    reached: Reached | None = None
    """Of windows: where the next one begins."""
    last: bool = False
    """Of windows: there is no next one."""
    model: str | None = None
    """The id of the one that wrote it; None: the one that the session began with."""


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """What the answer to chunk `seq` said, where it was more than the answer before it had."""

    seq: int
    speech: bool | None
    segments: int
    """How many of the session's segments this answer and those before it gave."""


class Finishing(msgspec.Struct, frozen=True, tag="finishing"):
    """No more audio is taken."""

    reason: Reason


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """All is written. `meta` is the answer's, whenever it is asked for."""

    meta: Meta


class Broke(msgspec.Struct, frozen=True, tag="broke"):
    """The session cannot go on. Its audio and what was committed stay until it is removed."""

    kind: Kind
    message: str


Record = Began | Spoke | Listened | Committed | Answered | Finishing | Finished | Broke

_DECODER = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(body: bytes) -> Record:
    return _DECODER.decode(body)
