"""What a session was asked for: written once when it is created, read again after a restart.

Knows no file and no route; request.py makes it from what a client sent.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from protocol.jobs import Decoding, Task

Segmentation = Literal["vad", "window"]
"""`vad`: an utterance ends at a pause and is transcribed at once; `window`: each full 30 s window."""

SessionFormat = Literal["json", "verbose_json"]


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One session's wishes, in full: a default that changes later does not change a session that is under way."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    """The id of the model that serves it."""
    task: Task
    segmentation: Segmentation
    vad_silence_ms: int
    """Silence that ends an utterance."""
    vad_threshold: float
    vad_min_speech_ms: int
    partials: bool
    response_format: SessionFormat
    decoding: Decoding
    """With the request's prompt and vocabulary, `audio_ctx` resolved and `words` and `logprobs` as asked for."""
