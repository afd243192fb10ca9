"""What a job has said: what its next process is asked, and which of its answers nobody has heard yet."""

from __future__ import annotations

from protocol.events import ChoiceEnded, Decoded, Delta, Generated, Progress, Segment, Started, Transcribed
from protocol.jobs import Chat, ChatMessage, Decode, Generation, Guess, Pcm, Transcribe
from protocol.past import Reached
from protocol.resume import Begun, Resume
from protocol.tools import CallPart
from service.told import told

AUDIO = Pcm("", 0, 1_600_000)
DECODE = Decode(source="", target="")
TRANSCRIBE = Transcribe(AUDIO, draft=(1, 2))


def segment(text: str) -> Segment:
    return Segment(0, 1, text, (), 0, 0.0, 0.0, 1.0, 0.0)


def chat(n: int = 1) -> Chat:
    return Chat((ChatMessage(role="user", content="Hi"),), Generation(n=n))


def test_a_job_without_events_of_its_own_starts_again() -> None:
    job = told(DECODE)
    assert job.begin() == DECODE
    job.take(Progress(1, 2))
    assert job.begin() == DECODE


def test_progress_comes_once_and_forward() -> None:
    job = told(DECODE)
    job.begin()
    assert [job.take(Progress(done, 9)) for done in (1, 2)] == [True, True]
    job.begin()
    assert [job.take(Progress(done, 9)) for done in (1, 2, 3)] == [False, False, True]


def test_a_job_is_further_only_with_what_none_had_said_before() -> None:
    job = told(DECODE)
    job.begin()
    job.take(Progress(1, 2))
    assert job.further
    job.begin()
    job.take(Progress(1, 2))
    assert not job.further
    job.take(Decoded(1, "pyav", "wav", 1.0))
    assert job.further


def test_a_guess_is_not_worth_another_process() -> None:
    assert not told(Guess(AUDIO)).resumable


def test_a_transcription_goes_on_behind_the_last_place_that_is_named() -> None:
    job, reached = told(TRANSCRIBE), Reached(3000, (5,), "en", 0.9)
    assert job.begin() == TRANSCRIBE
    assert job.take(segment("a"))
    assert job.take(Progress(30, 100, reached))
    assert job.begin() == Transcribe(AUDIO, reached=reached)
    assert job.take(segment("b"))


def test_segments_behind_that_place_are_not_told_twice() -> None:
    job = told(TRANSCRIBE)
    job.begin()
    heard = [job.take(segment(each)) for each in "ab"]
    job.begin()
    heard += [job.take(segment(each)) for each in "ab"]
    job.begin()
    heard += [job.take(segment(each)) for each in "abc"]
    assert heard == [True, True, False, False, False, False, True]


def test_a_place_named_amid_what_is_told_already_counts_what_lies_before_it() -> None:
    job = told(TRANSCRIBE)
    job.begin()
    heard = [job.take(segment(each)) for each in "abc"]
    job.begin()
    heard.append(job.take(segment("a")))
    job.take(Progress(1, 9, Reached(0, track=1)))
    heard += [job.take(segment(each)) for each in "bcd"]
    assert heard == [True, True, True, False, False, False, True]


def test_what_an_engine_would_hear_otherwise_the_next_time_is_not_heard_again() -> None:
    job = told(TRANSCRIBE, exact=False)
    job.begin()
    assert job.resumable
    job.take(segment("a"))
    assert not job.resumable


def test_an_answer_goes_on_with_the_tokens_of_all_its_deltas() -> None:
    job = told(chat(2))
    assert job.begin() == chat(2)
    for event in (
        Started(7, 3, (1, 2)),
        Delta(0, "a", ids=(4, 5)),
        Delta(1, "x", calls=(CallPart(0, "call_1", "f"),), ids=(9,)),
        Delta(0, "b", ids=(6,)),
        ChoiceEnded(1, "stop", 2, ids=(2,)),
    ):
        assert job.take(event)
    again = job.begin()
    assert isinstance(again, Chat)
    assert again.generation.resume == Resume((Begun((4, 5, 6)), Begun((9, 2), ("call_1",), ended=True)), 3, (1, 2))


def test_of_an_answer_said_again_only_what_is_new_is_told() -> None:
    job = told(chat(2))
    job.begin()
    for event in (Started(7, 3), Delta(0, "a", ids=(4,)), Delta(1, "x", ids=(9,)), ChoiceEnded(1, "stop", 1)):
        job.take(event)
    job.begin()
    again = (
        Started(7, 0),
        Delta(0, "a", ids=(4,)),
        Delta(1, "x", ids=(9,)),
        ChoiceEnded(1, "stop", 1),
    )
    assert [job.take(each) for each in again] == [False] * 4
    assert not job.further
    new = (Delta(0, "b", ids=(5,)), ChoiceEnded(0, "stop", 2), Generated(7, 3, 3))
    assert [job.take(each) for each in new] == [True] * 3
    assert job.further


def test_a_question_is_passed_on_every_time_and_an_end_always() -> None:
    job = told(TRANSCRIBE)
    job.begin()
    assert job.take(Transcribed("en", 0.9, None))  # type: ignore[arg-type]
