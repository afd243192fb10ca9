"""What a session's readers see: stored events with ids, then live ones; partial texts, the newest only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from protocol.errors import InternalError
from protocol.jobs import Decoding, Guess, Transcribe
from service.dictation import records
from service.dictation.chunk import Chunk
from service.dictation.records import (
    Answered,
    Began,
    Committed,
    Finished,
    Finishing,
    Listened,
    Record,
    Spoke,
)
from service.dictation.store import Store, Stored
from service.transcripts import FORMATS
from tests.dictated import S16, pen, spoken, text
from tests.fakes import FakeWorker
from tests.service.dictation.conftest import VIEW, dictation, spec
from tests.service.dictation.test_session import TALK, until

pytestmark = pytest.mark.anyio


async def test_the_events_of_a_session_in_their_order(store: Store) -> None:
    async with dictation(store.create(spec(response_format="json"))) as made:
        await made.say(spoken(0.512, 1, 1.0))
        await made.until("transcript.text.delta")
        transcript = await made.session.finish()
        events = await made.events()
    assert [event for _, event in events] == [
        {"type": "session.created", "session": VIEW},
        {"type": "speech.started", "start": 0.512},
        {"type": "speech.stopped", "end": 0.928},
        {
            "type": "transcript.text.delta",
            "delta": "word1",
            "segment": {"id": 0, "start": 0.512, "end": 0.912},
        },
        {
            "type": "transcript.text.done",
            "text": "word1",
            "usage": {"type": "duration", "seconds": 2},
            "starling": transcript.meta,
        },
        {"type": "session.closed", "reason": "finished"},
    ]
    assert [number for number, _ in events] == [1, 2, 3, 4, 5, 6]


async def test_done_has_the_format_that_was_asked_for_and_the_deltas_joined_are_its_text(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(TALK)
        transcript = await made.session.finish()
        events = [event for _, event in await made.events()]
    done = events[-2]
    deltas = [event["delta"] for event in events if event["type"] == "transcript.text.delta"]
    assert "".join(deltas) == done["text"] == transcript.text == text(1, 2, 3, 4, 5)
    assert [segment["id"] for segment in done["segments"]] == [0, 1, 2, 3, 4]
    assert b'"segments":[{"id":0' in FORMATS["verbose_json"].write(transcript)


async def test_readers_that_come_early_late_or_again_see_the_same(stored: Stored) -> None:
    async with dictation(stored) as made:
        early = asyncio.create_task(made.events())
        await made.say(TALK)
        await made.session.finish()
        late = await made.events()
        assert await early == late
        for after in range(len(late) + 3):
            assert await made.events(after) == late[after:]


async def test_a_session_that_expires_says_so_at_its_end(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(TALK)
        await made.session.finish("expired")
        assert (await made.events())[-1][1] == {"type": "session.closed", "reason": "expired"}
        await made.session.close("deleted")
        assert (await made.events())[-1][1] == {"type": "session.closed", "reason": "expired"}


async def test_an_open_utterance_is_guessed_at_and_the_guess_is_not_kept(store: Store) -> None:
    async with dictation(store.create(spec(partials=True))) as made:
        await made.say(spoken(0.5, 1, 2, 3))
        partial = await made.until("transcript.text.partial")
        assert (partial["text"], partial["start"]) == ("word1 word2 word3", 0.256)
        await made.say(spoken(4))
        later = await newest(made, after=partial)
        assert later["text"] == "word1 word2 word3 word4"
        assert "" < later["stable"] < later["text"]
        assert later["stable"].startswith(partial["stable"])
        await made.say(spoken(1.0))
        await made.until("transcript.text.delta")
        await made.session.finish()
        assert "transcript.text.partial" not in [event["type"] for _, event in await made.events()]
    assert made.session.text == text(1, 2, 3, 4)
    (final,) = [job for job in made.whisper.jobs if isinstance(job, Transcribe)]
    assert final.draft == (1, 2, 3, 4)


async def test_a_reader_that_was_slow_sees_the_newest_guess_alone(store: Store) -> None:
    async with dictation(store.create(spec(partials=True))) as made:
        reader = made.session.events(None)
        await anext(reader)
        for word in range(1, 8):
            await made.say(spoken(word))
            await until(lambda: made.session._listener.samples == made.session.samples)
        await made.until("transcript.text.partial")
        seen = [event async for _, event in limited(reader, 2)]
        assert [event["type"] for event in seen] == ["speech.started", "transcript.text.partial"]
        assert seen[-1]["text"] == text(*range(1, 8))


async def test_a_guess_waits_for_nothing_and_nothing_waits_for_a_guess(store: Store) -> None:
    never = asyncio.Event()
    whisper = FakeWorker("whisper", {**pen(), Guess: [never]})
    async with dictation(store.create(spec(partials=True)), whisper=whisper) as made:
        await made.say(spoken(0.5, 1, 2, 3))
        await until(lambda: guesses(whisper))
        await made.say(spoken(1.0))
        await made.until("transcript.text.delta")
        assert (made.session.text, whisper.cancelled) == (text(1, 2, 3), guesses(whisper))


async def test_nobody_guesses_while_an_utterance_is_being_written(store: Store) -> None:
    gate = asyncio.Event()
    whisper = FakeWorker("whisper", {**pen(), Transcribe: lambda job: [gate, *pen()[Transcribe](job)]})  # type: ignore[operator]
    async with dictation(store.create(spec(partials=True)), whisper=whisper) as made:
        await made.say(spoken(0.3, 1, 1.0))
        await until(lambda: any(isinstance(job, Transcribe) for job in whisper.jobs))
        before = len(guesses(whisper))
        await made.say(spoken(2, 3, 4))
        await until(lambda: made.session._listener.samples == made.session.samples)
        assert len(guesses(whisper)) == before
        gate.set()
        await until(lambda: len(guesses(whisper)) > before)


async def test_a_guess_that_fails_is_no_failure_of_the_session(store: Store) -> None:
    whisper = FakeWorker("whisper", {**pen(), Guess: [InternalError("no")]})
    async with dictation(store.create(spec(partials=True)), whisper=whisper) as made:
        await made.say(TALK)
        assert (await made.session.finish()).text == text(1, 2, 3, 4, 5)


async def test_a_guess_is_asked_for_what_the_utterance_will_be_asked_for(store: Store) -> None:
    decoding = Decoding(prompt="Birds.", audio_ctx="auto")
    async with dictation(store.create(spec(partials=True, decoding=decoding))) as made:
        await made.say(spoken(0.5, 1, 2, 1.0))
        await made.until("transcript.text.delta")
        await made.say(spoken(3, 4))
        await until(lambda: any(job.context for job in guesses(made.whisper)))
        await made.session.finish()
    jobs = [job for job in made.whisper.jobs if isinstance(job, Transcribe)]
    assert guesses(made.whisper)[-1].decoding == jobs[-1].decoding
    assert guesses(made.whisper)[-1].context == jobs[-1].context
    assert jobs[-1].context is not None


async def test_a_probable_end_is_transcribed_before_it_is_certain(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(spoken(0.5, 1, 0.3))
        await until(lambda: bool(made.whisper.jobs) and not made.whisper.running)
        assert made.session.text == ""
        await made.session.add(None, Chunk(S16, spoken(0.3)))
        await made.until("transcript.text.delta")
        assert (made.session.text, len(made.whisper.jobs)) == ("word1", 1)


async def test_an_end_that_was_none_is_called_off_and_said_once(stored: Stored) -> None:
    gate = asyncio.Event()
    whisper = FakeWorker("whisper", {Transcribe: lambda job: [gate, *pen()[Transcribe](job)]})  # type: ignore[operator]
    async with dictation(stored, whisper=whisper) as made:
        await made.say(spoken(0.5, 1, 0.3))
        await until(lambda: bool(whisper.jobs))
        await made.say(spoken(2))
        await until(lambda: bool(whisper.cancelled))
        gate.set()
        assert (await made.session.finish()).text == text(1, 2)
    assert len(whisper.jobs) - len(whisper.cancelled) == 1


async def test_an_end_that_was_none_is_forgotten_even_when_its_text_is_there(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(spoken(0.5, 1, 0.3))
        await until(lambda: bool(made.whisper.jobs) and not made.whisper.running)
        await made.say(spoken(2, 1.0))
        assert (await made.session.finish()).text == text(1, 2)


def guesses(whisper: FakeWorker) -> list[Guess]:
    return [job for job in whisper.jobs if isinstance(job, Guess)]


async def newest(made: Any, after: Mapping[str, Any]) -> Mapping[str, Any]:
    """The next partial text that is another one."""
    async with asyncio.timeout(10):
        async for _, event in made.session.events(None):
            if event["type"] == "transcript.text.partial" and event != after:
                return dict(event)
    raise AssertionError("the session ended without another partial text")


async def limited(events: Any, count: int) -> Any:
    for _ in range(count):
        yield await anext(events)


async def test_no_reader_has_an_event_that_the_next_power_cut_could_take_back(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Record, bool]] = []
    tell = stored.tell

    async def noted(record: bytes, *, sync: bool) -> None:
        told.append((records.decode(record), sync))
        await tell(record, sync=sync)

    monkeypatch.setattr(stored, "tell", noted)
    async with dictation(stored) as made:
        await made.say(TALK)
        await made.session.finish()
    assert {type(record) for record, sync in told if not sync} <= {Listened, Answered}
    assert {type(record) for record, sync in told if sync} == {Began, Spoke, Committed, Finishing, Finished}
