"""What the next utterance is heard with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.events import Segment, Timings
from protocol.jobs import Decoding, Span
from protocol.past import Context, Past
from service.dictation import records
from service.dictation.context import Hearing, hearing, misheard, within
from service.dictation.records import Committed, Listened, Record
from service.dictation.segmentation import State
from service.dictation.story import Story
from tests.service.dictation.conftest import spec
from tests.service.dictation.test_story import Nowhere

RATE = 16_000


def at(start: float, stop: float) -> Span:
    return Span(round(start * RATE), round(stop * RATE))


def heard(*spans: Span) -> Listened:
    return Listened(spans, 0, b"", State(), 0, 0.0)


def wrote(start: float, end: float, text: str, *, tokens: int = 1, temperature: float = 0.0) -> Committed:
    segment = Segment(start, end, text, (7,) * tokens, 0, temperature, -0.2, 1.3, 0.01)
    return Committed((segment,) if text else (), "en", 0.5, end - start, 0.1, Timings())


def next_of(*told: Record, span: Span, model: str | None = None, **asked: Any) -> Hearing:
    wishes = spec(**asked)
    return hearing(wishes, Story(wishes, Nowhere(), [records.encode(each) for each in told]), span, model)


TWO = (heard(at(1, 3), at(4, 6)), wrote(1.25, 2.75, " One."), wrote(4.25, 5.5, " Two."))


def test_the_first_utterance_is_heard_alone_in_more_of_a_window_than_it_needs() -> None:
    more = msgspec.structs.replace(spec().decoding, audio_ctx=1000)
    assert next_of(span=at(1, 3)) == Hearing(RATE, None, more)
    assert next_of(span=at(1, 18)).decoding.audio_ctx == "auto"
    assert next_of(span=at(1, 3), decoding=Decoding(audio_ctx=400)).decoding.audio_ctx == 400
    assert next_of(*TWO, span=at(7, 9), decoding=Decoding(audio_ctx="auto")).decoding.audio_ctx == "auto"


def test_who_is_heard_alone_again_is_heard_in_a_whole_window() -> None:
    for asked, found in (("auto", 1500), (400, 400)):
        wishes = spec(decoding=Decoding(audio_ctx=asked))  # type: ignore[arg-type]
        how = hearing(wishes, Story(wishes, Nowhere(), []), at(1, 3), None, alone=True)
        assert (how.context, how.decoding.audio_ctx) == (None, found)


def test_the_next_is_heard_with_those_before_it_in_the_clock_of_the_job() -> None:
    how = next_of(*TWO, span=at(7, 9))
    assert how.start == RATE
    assert how.context == Context(6 * RATE, (Past(0.25, 1.75, (7,)), Past(3.25, 4.5, (7,))))
    assert how.decoding.before == ""


def test_what_was_said_too_long_ago_is_a_prompt_instead() -> None:
    how = next_of(*TWO, span=at(12, 14), decoding=Decoding(prompt="Birds."))
    assert how.start == 4 * RATE
    assert how.context == Context(8 * RATE, (Past(0.25, 1.5, (7,)),))
    assert (how.decoding.prompt, how.decoding.before) == ("Birds.", " One.")


def test_a_context_and_a_long_utterance_fit_in_a_window() -> None:
    assert next_of(*TWO, span=at(7, 30.9)).start == RATE
    assert next_of(*TWO, span=at(7, 31.1)).start == 4 * RATE
    assert next_of(*TWO, span=at(7, 36)) == Hearing(7 * RATE, None, Decoding(**PROMPTED))


PROMPTED: dict[str, Any] = {"audio_ctx": "auto", "silence_rule": True, "before": " One. Two."}


def test_what_was_sampled_wildly_or_said_nothing_is_no_context() -> None:
    for bad in (wrote(4.25, 5.5, " Two.", temperature=0.6), wrote(4.25, 5.5, "")):
        assert next_of(*TWO[:2], bad, span=at(7, 9)).context is None


def test_another_model_s_tokens_are_no_context() -> None:
    assert next_of(*TWO, span=at(7, 9), model="whisper-tiny").context is None


def test_a_context_leaves_room_for_the_answer() -> None:
    told = (TWO[0], wrote(1.25, 2.75, " One.", tokens=100), wrote(4.25, 5.5, " Two.", tokens=100))
    how = next_of(*told, span=at(7, 9))
    assert how.start == 4 * RATE
    assert how.decoding.before == " One."


def test_without_conditioning_there_is_no_prompt() -> None:
    how = next_of(*TWO, span=at(12, 14), decoding=Decoding(condition_on_previous_text=False))
    assert (how.start, how.decoding.before) == (4 * RATE, "")


def test_windows_are_no_context_of_what_is_being_said() -> None:
    how = next_of(*TWO, span=at(7, 9), segmentation="window")
    assert (how.start, how.context) == (7 * RATE, None)


LONG = (heard(at(1, 3)), wrote(1.25, 2.75, " Hi, I'd like to buy a lamp."))


def said(*texts: str, start: float = 3.0) -> list[Segment]:
    """In the clock of a job that begins at the first utterance."""
    return [Segment(start, start + 1, text, (7,), 0, 0.0, -0.2, 1.3, 0.01) for text in texts]


@pytest.mark.parametrize(
    ("segments", "astray"),
    [
        (said(" Which colour would you like?"), False),
        (said(), True),
        (said(" hi i'd like to buy a lamp, which"), True),
        (said(" Hi, I'd like a shade too."), False),
        (said(" Which?") + said(" Thank you.", start=5.0), True),
    ],
)
def test_a_context_that_leads_astray_is_noticed(segments: list[Segment], astray: bool) -> None:
    """The audio of the job, from 1 to 6 s, lasts 5."""
    wishes, span = spec(), at(4, 6)
    story = Story(wishes, Nowhere(), [records.encode(each) for each in LONG])
    assert misheard(story, hearing(wishes, story, span, None), span, segments) is astray
    assert misheard(story, hearing(wishes, story, span, None, alone=True), span, segments) is False


@pytest.mark.parametrize(
    ("text", "stop", "again"),
    [(" You don't", 3.6, True), (" You don't mean it.", 3.6, False), (" Oh.", 2.5, False), ("", 3.6, True)],
)
def test_a_first_utterance_that_says_too_little_is_heard_again(text: str, stop: float, again: bool) -> None:
    wishes, span = spec(), at(1, stop)
    story = Story(wishes, Nowhere(), [records.encode(heard(span))])
    segments = said(text, start=0.0) if text else []
    assert misheard(story, hearing(wishes, story, span, None), span, segments) is again
    assert misheard(story, hearing(wishes, story, span, None, alone=True), span, segments) is False


def test_what_begins_where_the_audio_ends_was_not_said() -> None:
    first, after = said(" One.", start=2.0), said(" Thanks for watching.", start=2.0)
    assert within(first + after, 2 * RATE) == tuple(first)
    assert within(first + after, 3 * RATE) == (*first, *after)
