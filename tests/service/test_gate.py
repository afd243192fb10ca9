"""What Whisper is to hear of a recording: the gate's spans and the pieces. Times here are seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as draw

from protocol.jobs import Span
from protocol.settings import SAMPLE_RATE
from service.gate import LONGEST, Cutting, heard, pieces, trimmed

SERVER_VAD = Cutting(before=4_800, after=3_200, silence=3_200)
"""OpenAI's defaults: 300 ms, 200 ms, 200 ms."""


def spans(*seconds: tuple[float, float]) -> tuple[Span, ...]:
    return tuple(Span(round(start * SAMPLE_RATE), round(stop * SAMPLE_RATE)) for start, stop in seconds)


def seconds(found: Sequence[Span]) -> list[tuple[float, float]]:
    return [(span.start / SAMPLE_RATE, span.stop / SAMPLE_RATE) for span in found]


def samples(length: float) -> int:
    return round(length * SAMPLE_RATE)


def nobody_asks(start: int, stop: int) -> int:
    raise AssertionError("there was a silence to cut in")


def cut(
    speech: Sequence[tuple[float, float]], length: float, cutting: Cutting = SERVER_VAD
) -> list[tuple[float, float]]:
    return seconds(pieces(spans(*speech), samples(length), cutting, nobody_asks))


# ------------------------------------------------------------------------------------------------------- the gate


def test_no_speech_is_nothing_to_hear() -> None:
    assert heard((), 16_000) == trimmed((), 16_000) == pieces((), 16_000, SERVER_VAD, nobody_asks) == ()


def test_speech_is_heard_with_a_margin() -> None:
    assert seconds(heard(spans((5, 7)), samples(20))) == [(4.6, 7.4)]


def test_margins_end_where_the_recording_does() -> None:
    assert seconds(heard(spans((0.1, 1.9)), samples(2))) == [(0, 2)]
    assert seconds(trimmed(spans((0.1, 1.9)), samples(2))) == [(0, 2)]


def test_a_pause_of_less_than_two_seconds_is_heard_and_a_longer_silence_is_not() -> None:
    assert seconds(heard(spans((1, 2), (3.9, 5), (7, 8)), samples(10))) == [(0.6, 5.4), (6.6, 8.4)]


def test_trimming_keeps_what_is_between_the_first_speech_and_the_last() -> None:
    assert seconds(trimmed(spans((10, 12), (60, 61)), samples(90))) == [(9.6, 61.4)]


# ------------------------------------------------------------------------------------------------------ the pieces


def test_a_short_recording_is_one_piece_from_its_first_speech_to_its_last() -> None:
    assert cut([(2, 4), (6, 9)], 12) == [(1.7, 9.2)]


def test_thirty_seconds_are_one_piece() -> None:
    assert cut([(0, 14), (15, 30)], 30) == [(0, 30)]


def test_a_piece_ends_in_the_widest_silence_of_its_last_ten_seconds() -> None:
    speech = [(0, 21), (21.4, 25), (26.5, 29), (29.5, 51), (51.5, 70), (70.5, 90)]
    assert cut(speech, 90)[0] == (0, 25.2)


def test_the_silence_between_two_pieces_is_left_out_but_for_what_was_asked() -> None:
    assert cut([(0, 25), (28, 50)], 50) == [(0, 25.2), (27.7, 50)]
    assert cut([(0, 25), (28, 50)], 50, Cutting(before=0, after=0, silence=3_200)) == [(0, 25), (28, 50)]


def test_a_narrow_silence_is_shared() -> None:
    assert cut([(0, 25), (25.2, 50)], 50) == [(0, 25.1), (25.1, 50)]


def test_what_fits_into_two_pieces_is_cut_where_the_silence_is_widest_in_both() -> None:
    assert cut([(0, 8), (9, 29), (29.3, 34)], 34) == [(0, 8.2), (8.7, 34)]


def test_no_piece_goes_on_over_five_seconds_of_silence() -> None:
    assert cut([(0, 3), (8.1, 10)], 10) == [(0, 3.2), (7.8, 10)]
    assert cut([(0, 3), (7.9, 10)], 10) == [(0, 10)]


def test_a_silence_of_the_length_asked_for_goes_before_a_pause_that_is_nearer() -> None:
    patient = Cutting(before=0, after=0, silence=SAMPLE_RATE)
    assert cut([(0, 12), (13, 37), (37.5, 62)], 62, patient)[0] == (0, 12)
    assert cut([(0, 12), (12.9, 25), (25.5, 45)], 45, patient) == [(0, 25), (25.5, 45)]


def test_without_a_silence_the_widest_pause_will_do() -> None:
    patient = Cutting(before=0, after=0, silence=2 * SAMPLE_RATE)
    assert cut([(0, 22), (22.3, 27), (27.8, 31), (31.2, 55)], 55, patient) == [(0, 27), (27.8, 55)]


def test_speech_without_a_pause_is_cut_at_its_quietest_moment_and_nothing_is_lost() -> None:
    asked = []

    def quietest(start: int, stop: int) -> int:
        asked.append((start / SAMPLE_RATE, stop / SAMPLE_RATE))
        return start + samples(2)

    found = pieces(spans((0, 75)), samples(75), SERVER_VAD, quietest)
    assert seconds(found) == [(0, 22), (22, 44), (44, 66), (66, 75)]
    assert asked == [(20, 30), (42, 52), (64, 74)]


def test_more_padding_than_there_is_silence_never_makes_pieces_overlap() -> None:
    greedy = Cutting(before=10 * SAMPLE_RATE, after=10 * SAMPLE_RATE, silence=1)
    assert cut([(12, 20), (22, 35)], 80, greedy) == [(2, 21), (21, 45)]


# ------------------------------------------------------------------------------------------------------ properties

gaps_and_lengths = draw.lists(
    draw.tuples(draw.integers(1, 12 * SAMPLE_RATE), draw.integers(1, 45 * SAMPLE_RATE)), max_size=20
)
paddings = draw.builds(
    Cutting,
    before=draw.integers(0, 10 * SAMPLE_RATE),
    after=draw.integers(0, 10 * SAMPLE_RATE),
    silence=draw.integers(0, 10 * SAMPLE_RATE),
)


def laid_out(parts: list[tuple[int, int]], tail: int) -> tuple[list[Span], int]:
    """Speech of these (silence before, length), and the samples of the whole."""
    speech, at = [], 0
    for gap, length in parts:
        speech.append(Span(at + gap, at + gap + length))
        at += gap + length
    return speech, at + tail


@settings(max_examples=300, deadline=None)
@given(gaps_and_lengths, draw.integers(0, 3 * SAMPLE_RATE), paddings, draw.floats(0, 1))
def test_pieces_are_in_order_apart_short_enough_and_hold_all_speech(
    parts: list[tuple[int, int]], tail: int, cutting: Cutting, fraction: float
) -> None:
    speech, length = laid_out(parts, tail)
    found = pieces(speech, length, cutting, lambda start, stop: start + round((stop - start) * fraction))
    assert all(0 <= piece.start < piece.stop <= length for piece in found)
    assert all(piece.stop - piece.start <= LONGEST for piece in found)
    assert all(one.stop <= other.start for one, other in pairwise(found))
    edges = [0, *(edge for piece in found for edge in (piece.start, piece.stop)), length]
    left_out = [(one, other) for one, other in zip(edges[::2], edges[1::2], strict=True) if one < other]
    assert not any(start < word.stop and word.start < stop for start, stop in left_out for word in speech)
    if speech:
        assert found[0].start == max(0, speech[0].start - cutting.before)
        assert found[-1].stop == min(length, speech[-1].stop + cutting.after)


@settings(max_examples=200, deadline=None)
@given(gaps_and_lengths, draw.integers(0, 3 * SAMPLE_RATE))
def test_the_gate_lets_all_speech_through_in_order(parts: list[tuple[int, int]], tail: int) -> None:
    speech, length = laid_out(parts, tail)
    found = heard(speech, length)
    assert all(0 <= span.start < span.stop <= length for span in found)
    assert all(one.stop < other.start for one, other in pairwise(found))
    assert all(any(span.start <= word.start and word.stop <= span.stop for span in found) for word in speech)
