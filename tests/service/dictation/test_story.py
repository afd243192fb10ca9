"""What follows from a session's records."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.events import Segment, Timings, VocabularyReport
from protocol.jobs import Decoding
from service.dictation import records
from service.dictation.records import Answered, Began, Committed, Record
from service.dictation.story import Story
from tests.service.dictation.conftest import VIEW, spec


class Nowhere:
    async def tell(self, record: bytes, *, sync: bool) -> None:
        raise AssertionError("nothing is written here")


def story(*told: Record, **asked: Any) -> Story:
    return Story(spec(**asked), Nowhere(), [records.encode(record) for record in told])


def said(*texts: str, language: str | None = "en", probability: float | None = 0.9, **given: Any) -> Committed:
    temperature = given.pop("temperature", 0.0)
    segments = tuple(Segment(0.0, 1.0, text, (), 0, temperature, -0.2, 1.3, 0.01) for text in texts)
    defaults: dict[str, Any] = {"seconds": 1.0, "spent_s": 0.1, "timings": Timings(decode=2.0)}
    return Committed(segments, language, probability, **(defaults | given))


def test_a_language_is_kept_from_the_first_sure_detection_on() -> None:
    doubtful, sure, other = said(probability=0.6), said(language="de", probability=0.8), said(probability=0.99)
    assert story(doubtful).language is None
    assert story(doubtful, sure, other).language == "de"


def test_the_whole_s_language_is_the_one_that_was_spoken_longest() -> None:
    told = [said(language="de", seconds=3.0), said(seconds=2.0, probability=0.4), said(seconds=2.0, probability=0.7)]
    assert story(*told).spoken == ("en", 0.7)
    assert story(said(language=None, probability=None)).spoken == (None, None)
    assert story(decoding=Decoding(language="fr")).spoken == ("fr", None)


def test_the_tail_is_the_last_words_that_fit() -> None:
    told = story(said(*[f" word{number}" for number in range(100)]))
    assert told.tails[-1] == "".join(f" word{number}" for number in range(72, 100))
    assert story(said("字" * 100)).tails[-1] == "字" * 66


def test_text_that_was_sampled_wildly_and_all_before_it_is_no_prompt() -> None:
    assert story(said(" one"), said(" two", temperature=0.6)).tails[-1] == ""
    assert story(said(" one"), said(" two", temperature=0.6), said(" three")).tails[-1] == " three"
    assert story(said(" one"), said()).tails[-1] == " one"


def test_an_answer_that_said_no_more_than_the_last_needs_no_record() -> None:
    told = story(Answered(3, False, 0), Answered(5, True, 2), Answered(9, True, 3))
    assert [told.answer(seq) for seq in (0, 3, 4, 5, 6, 9, 10)] == [
        (None, range(0)),
        (False, range(0)),
        (False, range(0)),
        (True, range(2)),
        (True, range(0)),
        (True, range(2, 3)),
        (True, range(0)),
    ]


@pytest.mark.parametrize("first", [None, {"given": 9, "fitted": 2, "tokens": 5, "budget": 80}])
def test_the_vocabulary_is_reported_as_when_the_session_was_created(first: dict[str, int] | None) -> None:
    told = story(Began(VIEW | {"vocabulary": first}), said(vocabulary=VocabularyReport(3, 2, 5, 80)))
    assert told.vocabulary == VocabularyReport(first["given"] if first else 3, 2, 5, 80)


def test_timings_are_those_of_all_commits() -> None:
    assert story(said(), said()).timings == Timings(decode=4.0)
