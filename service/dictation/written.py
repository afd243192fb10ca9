"""What a session tells its client: its bodies and events, as types. Knows nothing else."""

from __future__ import annotations

from typing import Literal, TypedDict

from protocol.events import VocabularyReport
from service import written
from service.dictation.sessions import View
from service.dictation.story import SessionState


class SessionBegun(TypedDict):
    """`expires_at`, in Unix seconds: when it is finished for want of audio."""

    id: str
    model: str
    state: SessionState
    expires_at: int
    vocabulary: VocabularyReport | None


class SessionList(TypedDict):
    object: Literal["list"]
    data: list[View]


class ChunkTaken(TypedDict):
    """`samples` (at 16 kHz) and seconds of the whole session; `speech`: what the detector last heard, null before it
    knows; `segments`: those committed since the last answer."""

    id: str
    seq: int
    samples: int
    duration: float
    speech: bool | None
    segments: list[written.VerboseSegment]


class SessionCreated(TypedDict):
    type: Literal["session.created"]
    session: SessionBegun


class SpeechStarted(TypedDict):
    """Seconds of the session."""

    type: Literal["speech.started"]
    start: float


class SpeechStopped(TypedDict):
    type: Literal["speech.stopped"]
    end: float


class Partial(TypedDict):
    """What is being said, from the second `start`: its beginning `stable` will not change. Not kept for resuming."""

    type: Literal["transcript.text.partial"]
    text: str
    stable: str
    start: float


class SessionClosed(TypedDict):
    type: Literal["session.closed"]
    reason: Literal["finished", "expired", "deleted"]


EVENTS = (SessionCreated, SpeechStarted, SpeechStopped, Partial, *written.EVENTS[1:], SessionClosed)
