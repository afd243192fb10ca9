"""What transcripts are written as: the bodies and events of service/transcripts.py, as types. Knows nothing else."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from protocol.events import Word
from protocol.jobs import Task
from service.errors import Error
from service.transcripts import Meta


class Duration(TypedDict):
    """Whole seconds, rounded up."""

    type: Literal["duration"]
    seconds: int


class Logprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class Json(TypedDict):
    """`logprobs`: of the tokens, when `include` asked for them."""

    text: str
    logprobs: NotRequired[list[Logprob]]
    usage: Duration
    starling: Meta


class VerboseSegment(TypedDict):
    """Times in seconds; `seek` in frames of 10 ms. `words`: when they were asked for."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: NotRequired[tuple[Word, ...]]


class VerboseJson(Json):
    """`language`: its English name in lower case, or unknown."""

    task: Task
    language: str
    duration: float
    segments: list[VerboseSegment]
    words: NotRequired[list[Word]]


class Progress(TypedDict):
    """Seconds of the recording."""

    type: Literal["transcript.progress"]
    done: float
    total: float


class Times(TypedDict):
    """Of a segment, in seconds."""

    id: int
    start: float
    end: float
    words: NotRequired[tuple[Word, ...]]


class Delta(TypedDict):
    """One finished segment. The deltas joined are the text."""

    type: Literal["transcript.text.delta"]
    delta: str
    segment: Times
    logprobs: NotRequired[list[Logprob]]


class Done(Json):
    """`body`: the text as srt, vtt or text, when that was asked for."""

    type: Literal["transcript.text.done"]
    body: NotRequired[str]


class VerboseDone(VerboseJson):
    """With response_format verbose_json."""

    type: Literal["transcript.text.done"]


class Failed(TypedDict):
    """The last event of a stream that fails."""

    type: Literal["error"]
    error: Error


EVENTS = (Progress, Delta, Done, VerboseDone, Failed)
