"""Where utterances begin and end: the rules one by one, and what holds for any recording."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw

from protocol.jobs import Span
from service.dictation.segmentation import (
    MAX_UTTERANCE,
    WINDOW,
    Boundary,
    Segmenter,
    SpeechStarted,
    SpeechStopped,
    State,
    Utterance,
)

Windows = list[tuple[float, float]]
"""A probability and a level for each."""

TALK, BREATH, QUIET = (0.9, 0.1), (0.4, 0.05), (0.01, 0.001)
"""Speech; neither speech nor silence at a threshold of 0.5; silence."""


def segmenter(threshold: float = 0.5, min_speech_ms: int = 250, silence_ms: int = 500) -> Segmenter:
    return Segmenter(threshold, min_speech_ms, silence_ms)


def feed(to: Segmenter, *parts: Windows) -> list[Boundary]:
    windows = [window for part in parts for window in part]
    return to.feed([probability for probability, _ in windows], [level for _, level in windows])


def whole(*parts: Windows, **settings: float) -> list[Boundary]:
    """The boundaries of a recording that ends with its last window."""
    ears = segmenter(**settings)  # type: ignore[arg-type]
    return feed(ears, *parts) + ears.end(sum(map(len, parts)) * WINDOW)


def utterances(found: list[Boundary]) -> list[Utterance]:
    return [boundary for boundary in found if isinstance(boundary, Utterance)]


def test_speech_between_silences_is_an_utterance_with_padding_on_both_sides() -> None:
    assert feed(segmenter(), 50 * [QUIET], 40 * [TALK], 50 * [QUIET]) == [
        SpeechStarted(50 * WINDOW),
        SpeechStopped(90 * WINDOW),
        Utterance(42 * WINDOW, 96 * WINDOW),
    ]


def test_speech_is_announced_when_it_is_longer_than_the_least() -> None:
    ears = segmenter(min_speech_ms=250)
    assert feed(ears, 10 * [QUIET], 7 * [TALK]) == []
    assert ears.open is None
    assert feed(ears, [TALK]) == [SpeechStarted(10 * WINDOW)]
    assert ears.open == 2 * WINDOW


@pytest.mark.parametrize(("silence_ms", "windows"), [(100, 4), (128, 4), (129, 5), (500, 16), (5000, 157)])
def test_an_utterance_ends_with_the_window_that_completes_the_silence(silence_ms: int, windows: int) -> None:
    ears = segmenter(silence_ms=silence_ms)
    assert feed(ears, 40 * [TALK], (windows - 1) * [QUIET]) == [SpeechStarted(0)]
    assert feed(ears, [QUIET]) == [SpeechStopped(40 * WINDOW), Utterance(0, (40 + min(windows, 6)) * WINDOW)]


def test_a_shorter_silence_splits_nothing() -> None:
    assert utterances(whole(40 * [TALK], 15 * [QUIET], 40 * [TALK])) == [Utterance(0, 95 * WINDOW)]


def test_two_utterances_share_the_padding_between_them() -> None:
    found = utterances(whole(40 * [TALK], 4 * [QUIET], 40 * [TALK], silence_ms=100))
    assert found == [Utterance(0, 44 * WINDOW), Utterance(44 * WINDOW, 84 * WINDOW)]


def test_breath_goes_on_with_speech_and_with_silence_but_starts_none() -> None:
    assert whole(100 * [BREATH]) == []
    assert utterances(whole(20 * [TALK], 20 * [BREATH], 20 * [TALK])) == [Utterance(0, 60 * WINDOW)]
    assert utterances(whole(20 * [TALK], [QUIET], 20 * [BREATH])) == [Utterance(0, 26 * WINDOW)]


def test_a_burst_that_is_too_short_is_no_speech() -> None:
    assert whole(20 * [QUIET], 7 * [TALK], 50 * [QUIET]) == []
    assert whole(20 * [QUIET], 7 * [TALK]) == []


def test_clicks_never_add_up_to_speech() -> None:
    assert whole(*[[TALK], 6 * [QUIET]] * 300) == []


def test_a_short_burst_belongs_to_the_speech_that_follows_soon() -> None:
    ears = segmenter()
    assert feed(ears, 50 * [QUIET], 4 * [TALK], 8 * [QUIET], 8 * [TALK]) == [SpeechStarted(50 * WINDOW)]
    assert ears.open == 42 * WINDOW


def test_a_short_burst_long_before_speech_does_not_belong_to_it() -> None:
    found = whole(50 * [QUIET], 4 * [TALK], 40 * [QUIET], 20 * [TALK], silence_ms=5000)
    assert found[0] == SpeechStarted(94 * WINDOW)


def test_with_no_least_one_window_is_speech() -> None:
    assert feed(segmenter(min_speech_ms=0), 20 * [QUIET], [TALK]) == [SpeechStarted(20 * WINDOW)]
    assert utterances(whole(20 * [QUIET], [TALK], 20 * [QUIET], min_speech_ms=0)) == [
        Utterance(12 * WINDOW, 27 * WINDOW)
    ]


def test_the_end_of_the_recording_ends_an_utterance_with_all_its_samples() -> None:
    ears = segmenter()
    feed(ears, 40 * [TALK])
    assert ears.end(40 * WINDOW + 511) == [SpeechStopped(40 * WINDOW + 511), Utterance(0, 40 * WINDOW + 511)]


def test_a_last_window_that_silence_filled_up_ends_with_the_recording() -> None:
    ears = segmenter()
    feed(ears, 40 * [TALK])
    assert utterances(ears.end(39 * WINDOW + 1)) == [Utterance(0, 39 * WINDOW + 1)]


def test_speech_that_the_recording_s_end_cut_short_counts_by_its_samples() -> None:
    ears = segmenter()
    feed(ears, 7 * [TALK])
    assert utterances(ears.end(7 * WINDOW + 417)) == [Utterance(0, 7 * WINDOW + 417)]


def test_nothing_heard_is_nothing_found() -> None:
    assert segmenter().end(0) == []
    assert segmenter().end(300) == []


def test_what_was_heard_last_is_unknown_before_anything_was() -> None:
    ears = segmenter()
    assert ears.speech is None
    for window, heard in (
        (QUIET, False),
        (BREATH, False),
        (TALK, True),
        (BREATH, True),
        (QUIET, False),
        (BREATH, False),
    ):
        feed(ears, [window])
        assert ears.speech is heard


def test_after_224_ms_of_silence_it_is_known_where_the_utterance_would_end() -> None:
    ears = segmenter()
    feed(ears, 40 * [TALK], 6 * [QUIET])
    assert ears.tentative is None
    feed(ears, [QUIET])
    assert ears.tentative == Span(0, 46 * WINDOW)
    feed(ears, 8 * [QUIET])
    assert ears.tentative == Span(0, 46 * WINDOW)
    feed(ears, [TALK])
    assert ears.tentative is None


def test_a_long_utterance_is_cut_at_its_quietest_point_and_goes_on_there() -> None:
    loud = 900 * [TALK]
    loud[700:706] = 6 * [(0.9, 0.001)]
    found = utterances(whole(loud, 200 * [TALK]))
    assert found[0].start == 0
    assert 702 * WINDOW <= found[0].stop <= 704 * WINDOW
    assert found[1] == Utterance(found[0].stop, 1100 * WINDOW)


def test_one_quiet_window_is_less_quiet_than_a_quiet_stretch() -> None:
    loud = 938 * [TALK]
    loud[800] = (0.9, 0.0)
    loud[700:706] = 6 * [(0.9, 0.01)]
    found = utterances(whole(loud))
    assert 702 * WINDOW <= found[0].stop <= 704 * WINDOW


def test_the_quietest_point_is_looked_for_in_the_last_ten_seconds_only() -> None:
    loud = 938 * [TALK]
    loud[300:306] = 6 * [(0.9, 0.0)]
    assert utterances(whole(loud))[0].stop > 620 * WINDOW


def test_a_pause_that_goes_on_past_thirty_seconds_is_cut_before_them() -> None:
    silence = 150 * [(0.01, 0.001)]
    silence[100:] = 50 * [(0.01, 0.0)]
    found = utterances(whole(850 * [TALK], silence, 100 * [TALK], silence_ms=5000))
    assert 900 * WINDOW < found[0].stop <= MAX_UTTERANCE
    assert found[1:] == [Utterance(found[0].stop, 1100 * WINDOW)]


def test_silence_after_29_s_of_speech_is_no_reason_to_cut() -> None:
    assert utterances(whole(930 * [TALK], 100 * [QUIET], silence_ms=5000)) == [Utterance(0, 936 * WINDOW)]


def test_padding_makes_no_utterance_longer_than_whisper_s_window() -> None:
    assert utterances(whole(937 * [TALK], 100 * [QUIET])) == [Utterance(0, MAX_UTTERANCE)]


@draw.composite
def recordings(drawn: draw.DrawFn) -> Windows:
    """Stretches of all kinds, up to two minutes."""
    seed = random.Random(drawn(draw.integers(0, 10_000)))
    stretches = drawn(
        draw.lists(draw.tuples(draw.sampled_from("tbqm"), draw.integers(1, 24), draw.booleans()), max_size=40)
    )
    windows: Windows = []
    for kind, length, long in stretches:
        for _ in range(length * (25 if long and kind in "tm" else 1)):
            probability = {"t": 0.9, "b": 0.4, "q": 0.01, "m": seed.random() ** 0.3}[kind]
            windows.append((probability, seed.random() * probability))
    return windows[:4000]


choices = draw.tuples(
    draw.sampled_from([0.5, 0.2, 0.005, 0.9]),
    draw.sampled_from([0, 32, 250, 1000]),
    draw.sampled_from([100, 224, 500, 5000]),
)


def spoken_runs(windows: Windows, threshold: float, min_speech_ms: int) -> list[tuple[int, int]]:
    """Windows [start, stop) of all bursts longer than the least, whatever comes around them."""
    leave, runs = max(threshold - 0.15, 0.01), list[tuple[int, int]]()
    start: int | None = None
    stop = 0
    for number, (probability, _) in enumerate([*windows, *4 * [(0.0, 0.0)]]):
        if probability >= threshold:
            start, stop = (number if start is None else start), number + 1
        elif start is not None and stop == number and probability >= leave:
            stop = number + 1
        elif start is not None and number + 1 - stop >= 4:
            runs.append((start, stop))
            start = None
    return [(start, stop) for start, stop in runs if (stop - start) * WINDOW > min_speech_ms * 16]


@settings(deadline=None, max_examples=300)
@given(recordings(), choices)
def test_all_speech_is_in_exactly_one_utterance_and_none_is_too_long(
    windows: Windows, choice: tuple[float, int, int]
) -> None:
    threshold, min_speech_ms, silence_ms = choice
    samples = len(windows) * WINDOW
    found = whole(windows, threshold=threshold, min_speech_ms=min_speech_ms, silence_ms=silence_ms)
    kept = utterances(found)
    assert all(0 <= one.start < one.stop <= samples and one.stop - one.start <= MAX_UTTERANCE for one in kept)
    assert all(one.stop <= other.start for one, other in pairwise(kept))
    abutting = joined(kept)
    for start, stop in spoken_runs(windows, threshold, min_speech_ms):
        assert any(one.start <= start * WINDOW and stop * WINDOW <= one.stop for one in abutting)


@settings(deadline=None, max_examples=300)
@given(recordings(), choices)
def test_speech_starts_and_stops_in_turn_and_each_stretch_of_it_is_made_of_whole_utterances(
    windows: Windows, choice: tuple[float, int, int]
) -> None:
    threshold, min_speech_ms, silence_ms = choice
    found = whole(windows, threshold=threshold, min_speech_ms=min_speech_ms, silence_ms=silence_ms)
    turns = [boundary for boundary in found if not isinstance(boundary, Utterance)]
    assert [type(turn) for turn in turns] == [SpeechStarted, SpeechStopped] * (len(turns) // 2)
    assert [turn.at for turn in turns] == sorted(turn.at for turn in turns)
    assert (not utterances(found)) == (not turns)
    for one in utterances(found):
        assert any(
            start.at < one.stop and one.start < stop.at for start, stop in zip(turns[::2], turns[1::2], strict=True)
        )


def joined(kept: list[Utterance]) -> list[Utterance]:
    """Utterances that abut as one."""
    found: list[Utterance] = []
    for one in kept:
        if found and found[-1].stop == one.start:
            found[-1] = Utterance(found[-1].start, one.stop)
        else:
            found.append(one)
    return found


@settings(deadline=None, max_examples=200)
@given(recordings(), choices, draw.data())
def test_any_cutting_and_any_restart_finds_the_same(
    windows: Windows, choice: tuple[float, int, int], data: draw.DataObject
) -> None:
    pieces = data.draw(draw.lists(draw.integers(0, max(len(windows), 1)), max_size=12).map(sorted))
    ears = Segmenter(*choice)
    found: list[Boundary] = []
    for start, stop in pairwise([0, *(min(piece, len(windows)) for piece in pieces), len(windows)]):
        found += feed(ears, windows[start:stop])
        kept = msgspec.msgpack.encode(ears.state())
        before = (ears.open, ears.tentative, ears.speech, ears.heard)
        ears = Segmenter(*choice, msgspec.msgpack.decode(kept, type=State))
        assert (ears.open, ears.tentative, ears.speech, ears.heard) == before
    found += ears.end(len(windows) * WINDOW)
    threshold, min_speech_ms, silence_ms = choice
    assert found == whole(windows, threshold=threshold, min_speech_ms=min_speech_ms, silence_ms=silence_ms)


@settings(deadline=None, max_examples=200)
@given(recordings(), choices)
def test_a_tentative_utterance_is_the_final_one_unless_speech_goes_on(
    windows: Windows, choice: tuple[float, int, int]
) -> None:
    ears = Segmenter(*choice)
    for window in windows:
        feed(ears, [window])
        if (span := ears.tentative) is not None:
            samples = ears.heard * WINDOW
            ended, silent = Segmenter(*choice, ears.state()), Segmenter(*choice, ears.state())
            expected = Utterance(span.start, span.stop)
            assert ears.open == span.start
            assert utterances(ended.end(samples - WINDOW + 1)) == [expected]
            assert utterances(feed(silent, 200 * [(0.0, 0.0)])) == [expected]


def test_a_state_is_a_copy() -> None:
    ears = segmenter()
    feed(ears, 20 * [TALK])
    state = ears.state()
    feed(ears, 20 * [TALK])
    assert state.heard == 20
    assert len(state.levels) == 20


def test_an_hour_of_speech_is_remembered_in_a_few_kilobytes() -> None:
    ears = segmenter()
    feed(ears, 112_500 * [TALK])
    assert len(msgspec.msgpack.encode(ears.state())) < 5000
