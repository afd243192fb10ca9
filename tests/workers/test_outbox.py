"""What waits on its way to the service, and what does not."""

from __future__ import annotations

import io
import time

import pytest

from protocol.errors import Kind
from protocol.events import ChoiceEnded, Delta, Failed, FromWorker, Generated, Progress, Started
from protocol.wire import Codec
from workers.outbox import Outbox

END = Generated(prompt_tokens=1, cached_tokens=0, completion_tokens=1)
PATIENT = 3600.0
OLD = 1e9
"""Of `youth`: a job is old as soon as it has spoken."""


class Parcels(list[bytes]):
    """What was written at a time."""

    def read(self) -> list[list[tuple[int, FromWorker]]]:
        codec = Codec[FromWorker](FromWorker)
        found = []
        for data in self:
            pipe, frames = io.BytesIO(data), []
            while (taken := codec.read(pipe)) is not None:
                frames.append(taken)
            found.append(frames)
        return found


def quick(outbox: Outbox) -> Outbox:
    """Behind a short step."""
    outbox.let_go()
    outbox.let_go()
    return outbox


def delta(text: str) -> Delta:
    return Delta(0, text)


def test_the_first_words_of_a_job_go_at_once_and_later_ones_together_with_its_end() -> None:
    parcels = Parcels()
    outbox = quick(Outbox(parcels.append, PATIENT, OLD))
    said: list[tuple[int, FromWorker]] = [
        (1, Started(1, 0)),
        (1, delta("a")),
        (1, delta("b")),
        (1, delta("c")),
        (1, END),
    ]
    for each in said:
        outbox.say(each)
        outbox.let_go()
    assert parcels.read() == [said[:1], said[1:2], said[2:]]


def test_behind_a_long_step_nothing_waits_for_the_next_one() -> None:
    parcels = Parcels()
    outbox = quick(Outbox(parcels.append, 0.01, OLD))
    outbox.say((1, delta("a")))
    time.sleep(0.02)
    outbox.let_go()
    del parcels[:]
    outbox.say((1, delta("b")))
    outbox.say((1, delta("c")))
    assert parcels.read() == [[(1, delta("b"))], [(1, delta("c"))]]


def test_a_young_answer_goes_word_by_word() -> None:
    parcels = Parcels()
    outbox = Outbox(parcels.append, PATIENT, 0.0)
    for each in ((1, delta("a")), (1, delta("b")), (1, delta("c"))):
        outbox.say(each)
    assert parcels.read() == [[(1, delta("a"))], [(1, delta("b"))], [(1, delta("c"))]]


def test_every_job_has_its_own_first_words_also_with_a_number_that_was_anothers() -> None:
    parcels = Parcels()
    outbox = quick(Outbox(parcels.append, PATIENT, OLD))
    for each in ((1, delta("a")), (2, delta("a")), (1, delta("b")), (1, END), (1, delta("c"))):
        outbox.say(each)
    assert parcels.read() == [[(1, delta("a"))], [(2, delta("a"))], [(1, delta("b")), (1, END)], [(1, delta("c"))]]


@pytest.mark.parametrize(
    "other",
    [
        ChoiceEnded(choice=0, reason="stop", tokens=1),
        Progress(done=1, total=2),
        Failed(kind=Kind.INTERNAL_ERROR, message="no"),
    ],
)
def test_whatever_is_no_word_takes_along_what_waits(other: FromWorker) -> None:
    parcels = Parcels()
    outbox = quick(Outbox(parcels.append, PATIENT, OLD))
    for each in ((1, delta("a")), (1, delta("b")), (2, other)):
        outbox.say(each)
    assert parcels.read() == [[(1, delta("a"))], [(1, delta("b")), (2, other)]]


def test_words_that_waited_long_enough_go_after_a_step_or_with_the_next() -> None:
    parcels = Parcels()
    outbox = Outbox(parcels.append, 0.0)
    outbox.say((1, delta("a")))
    outbox.say((1, delta("b")))
    assert parcels.read() == [[(1, delta("a"))], [(1, delta("b"))]]
    outbox = quick(Outbox(parcels.append, PATIENT, OLD))
    outbox.say((1, delta("a")))
    outbox.say((1, delta("b")))
    del parcels[:]
    outbox.let_go()
    assert not parcels
    outbox._due_at = 0.0
    outbox.let_go()
    outbox.let_go()
    assert parcels.read() == [[(1, delta("b"))]]
