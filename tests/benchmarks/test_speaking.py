"""What a dictation's client can tell of it: waits, and whether stable texts kept their promise."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.speaking import Said


def said(*events: tuple[float, dict[str, Any]]) -> Said:
    """Speech began at 100 s on the clock, the last chunk was sent at 110 s."""
    return Said("", began=100.0, fed=110.0, answered=110.25, chunks=(), events=events)


def stopped(end: float) -> dict[str, Any]:
    return {"type": "speech.stopped", "end": end}


def delta(start: float, text: str) -> dict[str, Any]:
    return {"type": "transcript.text.delta", "delta": text, "segment": {"start": start}}


def partial(start: float, stable: str) -> dict[str, Any]:
    return {"type": "transcript.text.partial", "start": start, "stable": stable}


def test_the_wait_for_the_whole_text_counts_from_the_last_chunk() -> None:
    assert said().finish_s == 0.25


def test_the_wait_for_an_utterance_counts_to_the_last_of_its_text() -> None:
    events = [
        (102.6, stopped(2.0)),
        (102.7, delta(0.1, "One.")),
        (102.8, delta(1.2, " Two.")),
        (106.6, stopped(6.0)),
        (107.0, delta(4.0, " Three.")),
    ]
    assert said(*events).lags_s == pytest.approx([0.8, 1.0])


def test_what_said_nothing_or_was_ended_by_finish_is_no_wait() -> None:
    events = [(102.6, stopped(2.0)), (110.1, stopped(9.9)), (110.2, delta(9.0, "One."))]
    assert said(*events).lags_s == []


def test_the_last_stable_text_of_each_utterance_is_held_against_its_commit() -> None:
    events = [
        (101.0, partial(0.2, "")),
        (101.5, partial(0.2, " One")),
        (102.7, delta(0.2, "One")),
        (102.7, delta(1.2, " two.")),
        (105.0, partial(4.0, " Tree")),
        (106.7, delta(4.1, " Three.")),
    ]
    assert said(*events).promises == [("One", "One two.", 2), ("Tree", "Three.", 1)]
