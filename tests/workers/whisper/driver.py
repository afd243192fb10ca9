"""Runs jobs through the engine over a model and collects their events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.events import Doubt, Guessed, Model, Ready, Segment, Transcribed
from protocol.jobs import Decoding, Guess, Heard, Pcm, Transcribe
from workers.whisper.engine import Shares, WhisperEngine

LANGUAGES = ("en", "de", "fr", "it", "sv", "ja", "ko", "zh", "ru")
READY = Ready(
    capacity=16,
    model=Model(id="toy", kind="whisper", languages=LANGUAGES, translates=True, parameters=0, dtype="float32"),
)


def sound(path: Path, seconds: float, seed: int = 0) -> Pcm:
    """Noise whose loudness wanders, as a spool file."""
    generator = np.random.default_rng(seed)
    samples = round(seconds * 16000)
    loud = np.repeat(generator.uniform(50, 3000, samples // 1600 + 1), 1600)[:samples]
    (generator.normal(size=samples) * loud).astype("<i2").tofile(path)
    return Pcm(str(path), 0, samples)


def job(
    audio: Pcm,
    *,
    task: str = "transcribe",
    urgent: bool = False,
    spans: Any = None,
    independent: bool = False,
    speech: Any = None,
    reached: Any = None,
    whole: bool = True,
    draft: Sequence[int] = (),
    **decoding: Any,
) -> Transcribe:
    return Transcribe(
        audio=audio,
        task=task,
        urgent=urgent,
        spans=spans,
        independent=independent,
        speech=speech,
        reached=reached,
        whole=whole,
        draft=tuple(draft),
        decoding=Decoding(**decoding),
    )  # type: ignore[arg-type]


def guess(
    audio: Pcm, *, said: Sequence[int] = (), draft: Sequence[int] = (), listening: bool = False, **decoding: Any
) -> Guess:
    return Guess(audio, said=tuple(said), draft=tuple(draft), listening=listening, decoding=Decoding(**decoding))


def guessed(model: Any, asked: Guess) -> Guessed:
    """The one answer to a guess."""
    (answer,) = run(model, [asked])[0]
    assert isinstance(answer, Guessed)
    return answer


def run(
    model: Any,
    jobs: Sequence[Transcribe | Guess],
    *,
    shares: Shares | None = None,
    hear: Callable[[Doubt], bool] | None = None,
) -> list[list[Any]]:
    """All jobs at once, admitted in order. -> each one's events."""
    engine = WhisperEngine(model, READY, shares)
    events: list[list[Any]] = [[] for _ in jobs]
    handles = [engine.admit(each, events[i].append) for i, each in enumerate(jobs)]
    asked = 0
    while engine.stats().jobs:
        while engine.busy:
            engine.step()
        if engine.stats().jobs:
            for handle, seen in zip(handles, events, strict=True):
                for doubt in [event for event in seen if isinstance(event, Doubt)]:
                    assert hear is not None
                    engine.answer(handle, Heard(hear(doubt)))
                    seen.remove(doubt)
                    asked += 1
    return events


def segments(events: Sequence[Any]) -> list[Segment]:
    return [event for event in events if isinstance(event, Segment)]


def text(events: Sequence[Any]) -> str:
    assert isinstance(events[-1], Transcribed), events[-1]
    return "".join(segment.text for segment in segments(events))
