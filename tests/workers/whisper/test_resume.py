"""A transcription whose process dies after any of its events goes on in another one, and no client can tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.events import Doubt, Event, Progress, Transcribed
from protocol.jobs import Heard, Pcm, Span, Transcribe
from protocol.past import Context, Past
from service.told import told
from tests.workers.whisper.driver import READY, job, segments, sound
from tests.workers.whisper.toy import ToyModel
from workers.whisper.engine import WhisperEngine

SECOND = 16_000


def said(asked: Transcribe, deaths: Callable[[int], bool] = lambda _: False) -> tuple[list[Event], int]:
    """What its reader gets where processes die after each of their events (counted over all) that `deaths` names.
    -> and how many were needed."""
    so_far, seen, count, lives = told(asked), list[Event](), 0, 0
    while not (seen and isinstance(seen[-1], Transcribed)):
        events: list[Event] = []
        engine = WhisperEngine(ToyModel(), READY)
        begun = so_far.begin()
        assert isinstance(begun, Transcribe)
        lives += 1
        handle = engine.admit(begun, events.append)
        dead = False
        while engine.busy and not dead:
            engine.step()
            while events and not dead:
                event = events.pop(0)
                count += 1
                if isinstance(event, Doubt):
                    engine.answer(handle, Heard(round(event.start) % 2 == 0))
                elif so_far.take(event):
                    seen.append(event)
                dead = deaths(count) and not isinstance(event, Transcribed)
    return seen, lives


def clean(events: list[Event]) -> list[Event]:
    """Without progress, and without the time that was spent."""
    end = events[-1]
    assert isinstance(end, Transcribed)
    return [*segments(events), msgspec.structs.replace(end, timings=None)]  # type: ignore[arg-type]


JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with words": {"words": True},
    "hallucinations": {"words": True, "hallucination_silence_threshold": 2.0},
    "a prompt and terms": {"language": "de", "prompt": "Ada", "vocabulary": ("Weizsäcker", "Gauß")},
    "sampled": {"temperature": (0.4, 0.8), "best_of": 2, "seed": 3},
    "doubtful": {"silence_rule": True, "logprob_threshold": -0.1},
    "short contexts": {"audio_ctx": "auto", "logprobs": True},
    "beams": {"beam_size": 3},
    "cut": {"spans": (Span(0, 40 * SECOND), Span(50 * SECOND, 72 * SECOND))},
    "in pieces": {
        "independent": True,
        "spans": tuple(Span(start * SECOND, stop * SECOND) for start, stop in ((0, 12), (12, 50), (50, 51), (60, 72))),
    },
    "pieces that are sampled": {
        "independent": True,
        "spans": tuple(Span(start * SECOND, (start + 18) * SECOND) for start in range(0, 72, 18)),
        "temperature": (0.4,),
        "best_of": 2,
        "seed": 3,
        "silence_rule": True,
        "logprob_threshold": -0.1,
    },
}


@pytest.mark.parametrize("how", JOBS.values(), ids=list(JOBS))
def test_after_a_death_at_any_event_the_answer_is_the_undisturbed_one(tmp_path: Path, how: dict[str, Any]) -> None:
    asked = job(sound(tmp_path / "spool", 72.0, seed=3), **{"temperature": (0.0,), **how})
    undisturbed, _ = said(asked)
    expected = clean(undisturbed)
    assert len(expected) > 2
    for place in range(1, len(undisturbed), max(1, len(undisturbed) // 4)):
        found, lives = said(asked, lambda count, place=place: count == place)
        assert clean(found) == expected, f"after event {place}"
        assert lives == 2


@pytest.mark.parametrize("how", [JOBS["plain"], JOBS["in pieces"]], ids=["plain", "in pieces"])
def test_after_death_upon_death_too(tmp_path: Path, how: dict[str, Any]) -> None:
    asked = job(sound(tmp_path / "spool", 72.0, seed=3), **{"temperature": (0.0,), **how})
    expected = clean(said(asked)[0])
    found, lives = said(asked, lambda count: count in (2, 3, 7))
    assert clean(found) == expected
    assert lives > 2


def test_progress_never_goes_back(tmp_path: Path) -> None:
    events, _ = said(job(sound(tmp_path / "spool", 95.0)), lambda count: count in (3, 5))
    done = [event.done for event in events if isinstance(event, Progress)]
    assert done == sorted(set(done))
    assert done[-1] == 95.0


def test_what_was_heard_before_the_audio_is_heard_once(tmp_path: Path) -> None:
    audio = sound(tmp_path / "spool", 70.0, seed=3)
    context = Context(4 * SECOND, (Past(0.0, 3.5, (50364, 2425, 13, 50539)),))
    asked = msgspec.structs.replace(job(audio, temperature=(0.0,)), context=context)
    expected = clean(said(asked)[0])
    assert clean(said(asked, lambda count: count == 4)[0]) == expected


def test_a_window_is_not_heard_again_once_it_is_told(tmp_path: Path) -> None:
    """Two windows of three were told: the second process hears the third."""
    asked = job(sound(tmp_path / "spool", 85.0, seed=3), temperature=(0.0,))
    so_far, events = told(asked), list[Event]()
    engine = WhisperEngine(ToyModel(), READY)
    engine.admit(asked, events.append)
    while len([event for event in events if isinstance(event, Progress)]) < 2:
        engine.step()
    for event in events:
        so_far.take(event)
    begun = so_far.begin()
    assert isinstance(begun, Transcribe)
    assert begun.reached is not None
    assert begun.reached.seek >= 3000
    assert begun.audio == Pcm(asked.audio.path, 0, 85 * SECOND)
