"""What becomes of answers while nobody reads them."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.events import ChoiceEnded, Delta, Event, Generated, Progress, Said, Started
from protocol.jobs import Chat, ChatMessage, Generation
from protocol.tools import CallPart
from service.ticket import MOST_JOINED, Ticket, joined
from service.told import told

END = Generated(prompt_tokens=1, cached_tokens=0, completion_tokens=1)


def ticket(choices: int = 1, backlog: int = 100) -> Ticket:
    job = Chat((ChatMessage(role="user", content="Hi"),), Generation(n=choices))
    made = Ticket(1, job, told(job), 10.0, backlog)
    made.told.begin()
    return made


def heard(made: Ticket, count: int) -> list[Event]:
    async def read() -> list[Event]:
        return [await made.next() for _ in range(count)]

    return asyncio.run(read())


def test_words_that_nobody_has_read_become_one_event() -> None:
    made = ticket()
    for event in (Started(1, 0), Delta(0, "a", ids=(1,)), Delta(0, "b", ids=(2, 3)), Delta(0, "c", ids=(4,)), END):
        assert made.put(event)
    assert heard(made, 3) == [Started(1, 0), Delta(0, "abc", ids=(1, 2, 3, 4)), END]


def test_each_choice_has_its_own() -> None:
    made = ticket(choices=2)
    ended = ChoiceEnded(choice=0, reason="stop", tokens=2)
    for event in (Delta(0, "a"), Delta(1, "x"), Delta(0, "b"), Delta(1, "y"), ended, Delta(1, "z"), END):
        made.put(event)
    assert heard(made, 5) == [Delta(0, "ab"), Delta(1, "xy"), ended, Delta(1, "z"), END]


def test_what_another_process_says_again_is_left_out_piece_by_piece() -> None:
    made = ticket()
    for event in (Started(1, 0), Delta(0, "a", ids=(1,)), Delta(0, "b", ids=(2,))):
        made.put(event)
    made.bereave(0.0)
    again = made.told.begin()
    assert isinstance(again, Chat) and again.generation.resume is not None
    assert again.generation.resume.choices[0].ids == (1, 2)
    for event in (Started(1, 0), Delta(0, "a", ids=(1,)), Delta(0, "b", ids=(2,)), Delta(0, "c", ids=(3,))):
        made.put(event)
    assert heard(made, 2) == [Started(1, 0), Delta(0, "abc", ids=(1, 2, 3))]


def test_an_event_has_a_bound_and_so_has_what_waits() -> None:
    made = ticket(backlog=3)
    words = [Delta(0, "a", ids=(1,)) for _ in range(3 * MOST_JOINED)]
    assert all(made.put(each) for each in words)
    assert not made.put(words[0])
    assert heard(made, 3) == [Delta(0, "a" * MOST_JOINED, ids=(1,) * MOST_JOINED)] * 3


def test_progress_between_words_keeps_its_place() -> None:
    made = ticket()
    for event in (Delta(0, "a"), Progress(done=1, total=2), Delta(0, "b")):
        made.put(event)
    assert heard(made, 3) == [Delta(0, "a"), Progress(done=1, total=2), Delta(0, "b")]


def test_joining_keeps_the_order_of_reasoning_text_and_calls() -> None:
    said = Said("a", b"a", -1.0)
    call = CallPart(0, "call_1", "weather")
    assert joined(Delta(0, reasoning="a"), Delta(0, "b")) == Delta(0, "b", "a")
    assert joined(Delta(0, "a", said=(said,)), Delta(0, "b", said=(said,))) == Delta(0, "ab", said=(said, said))
    assert joined(Delta(0, "a"), Delta(0, reasoning="b")) is None
    assert joined(Delta(0, calls=(call,)), Delta(0, "b")) is None
    assert joined(Delta(0, "a"), Delta(0, calls=(call,))) == Delta(0, "a", calls=(call,))


def test_arguments_of_a_call_are_joined_but_not_to_its_name() -> None:
    call = CallPart(0, "call_1", "weather")
    first, more = CallPart(0, arguments='{"city'), CallPart(0, arguments='": "Oslo"}')
    begun = joined(Delta(0, calls=(call,)), Delta(0, calls=(first,)))
    assert begun is not None and begun.calls == (call, first)
    ended = joined(begun, Delta(0, calls=(more, CallPart(1, "call_2", "time"))))
    assert ended is not None
    assert ended.calls == (call, CallPart(0, arguments='{"city": "Oslo"}'), CallPart(1, "call_2", "time"))


def order(delta: Delta) -> list[tuple[int, str, object]]:
    """What a client gets of it, in order: letters of one kind after the other, and of calls their names and letters."""
    letters = [(delta.choice, "reasoning", each) for each in delta.reasoning]
    letters += [(delta.choice, "text", each) for each in delta.text]
    found: list[tuple[int, str, object]] = [*letters]
    for part in delta.calls:
        found += [(delta.choice, "call", (part.index, part.id, part.name))] if part.id is not None else []
        found += [(delta.choice, "argument", each) for each in part.arguments]
    return found


def answers() -> st.SearchStrategy[list[Delta]]:
    """Of one choice: reasoning, text with its tokens, calls whose names come before their arguments; in pieces."""

    @st.composite
    def made(draw: st.DrawFn) -> list[Delta]:
        choice = draw(st.integers(0, 2))
        found: list[Delta] = []
        calls = 0
        for kind in draw(
            st.lists(st.sampled_from(["reasoning", "text", "both", "call", "arguments", "held"]), max_size=9)
        ):
            ids = tuple(draw(st.lists(st.integers(0, 9), max_size=40)))
            text = draw(st.text("abc", max_size=3))
            said = tuple(Said(each, each.encode(), -1.0) for each in text)
            match kind:
                case "reasoning":
                    found.append(Delta(choice, reasoning=text, ids=ids))
                case "text":
                    found.append(Delta(choice, text, said=said, ids=ids))
                case "both":
                    call = CallPart(calls, f"call_{calls}", "f")
                    found.append(Delta(choice, text, said=said, calls=(call, CallPart(calls, arguments="{")), ids=ids))
                    calls += 1
                case "call":
                    found.append(Delta(choice, calls=(CallPart(calls, f"call_{calls}", "f", text),), ids=ids))
                    calls += 1
                case "arguments" if calls:
                    found.append(Delta(choice, calls=(CallPart(calls - 1, arguments=text),), ids=ids))
                case _:
                    found.append(Delta(choice, ids=ids))
        return found

    return made()


@settings(deadline=None)
@given(st.lists(answers(), max_size=4), st.randoms(use_true_random=False))
def test_whatever_is_said_is_heard_in_order_and_once(said: list[list[Delta]], chance: random.Random) -> None:
    made, heard_of, told_of = ticket(choices=3), [], []
    for delta in sorted((each for answer in said for each in answer), key=lambda _: chance.random()):
        told_of.append(delta)
        assert made.put(delta)
        if chance.random() < 0.2:
            heard_of += heard(made, 1)
    while made._events:
        heard_of += heard(made, 1)
    for choice in range(3):
        mine = [
            [each for each in several if isinstance(each, Delta) and each.choice == choice]
            for several in (told_of, heard_of)
        ]
        for of in (order, lambda delta: delta.said, lambda delta: delta.ids):
            first, second = ([part for each in several for part in of(each)] for several in mine)
            assert first == second
    assert all(len(each.ids) < 2 * MOST_JOINED for each in heard_of if isinstance(each, Delta))
