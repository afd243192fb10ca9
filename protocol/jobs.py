"""What the service can ask of a worker, and the parts that questions are made of.

Knows nothing about HTTP, processes or models. Ids belong to the frame, never to a message.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.settings import SAMPLE_RATE

Task = Literal["transcribe", "translate"]

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Whisper's fallback ladder (openai/whisper transcribe.py)."""


class Pcm(msgspec.Struct, frozen=True):
    """A span of a spool file: 16 kHz mono signed 16-bit little-endian samples.

    `start` and `stop` count samples, not bytes; the span is half open.
    """

    path: str
    start: int
    stop: int

    @property
    def seconds(self) -> float:
        return (self.stop - self.start) / SAMPLE_RATE


class Decoding(msgspec.Struct, frozen=True, kw_only=True):
    """How Whisper decodes one recording. Names and defaults are Whisper's; None switches a threshold off."""

    language: str | None = None
    """A Whisper language code; None: detect."""
    languages: tuple[str, ...] = ()
    """Codes among which detection chooses; empty: all that the model knows."""
    prompt: str | None = None
    temperature: tuple[Annotated[float, Meta(ge=0, le=1)], ...] = TEMPERATURES
    """Tried in turn until a window passes the failure tests."""
    best_of: Annotated[int, Meta(ge=1, le=16)] = 5
    length_penalty: Annotated[float, Meta(ge=0, le=1)] | None = None
    condition_on_previous_text: bool = True
    no_speech_threshold: Annotated[float, Meta(ge=0, le=1)] | None = 0.6
    logprob_threshold: Annotated[float, Meta(le=0)] | None = -1.0
    compression_ratio_threshold: Annotated[float, Meta(gt=0)] | None = 2.4
    without_timestamps: bool = False


class Decode(msgspec.Struct, frozen=True, tag="decode"):
    """Turn any media file into 16 kHz mono s16le. Answered by Progress… Decoded."""

    source: str
    """The client's file as it came. Its name means nothing."""
    target: str
    """The spool file to write."""


class Transcribe(msgspec.Struct, frozen=True, tag="transcribe"):
    """Turn speech into text. Answered by Progress…, Segment…, Transcribed."""

    audio: Pcm
    task: Task = "transcribe"
    decoding: Decoding = Decoding()


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Forget the job whose id the frame carries. Idempotent; unknown ids are fine.

    A job that it stops ends with Failed(request_cancelled), so that its id is free and a hang still shows; where an
    engine blocks, the process ends instead (wire.CANCELLED_EXIT).
    """


Job = Decode | Transcribe
ToWorker = Decode | Transcribe | Cancel
