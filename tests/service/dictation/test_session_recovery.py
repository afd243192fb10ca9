"""A session whose service is killed, at every point at which it waits for anything: it goes on and says the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidRequest, SessionFailed
from protocol.jobs import Transcribe
from service.dictation.chunk import Chunk
from service.dictation.session import Accepted, Session
from service.dictation.spec import Spec
from service.dictation.store import Store
from service.dictation.turns import Turns
from service.transcripts import Transcript
from tests.dictated import S16, Fuse, FusedWorker, cut, ears, pen, spoken
from tests.fakes import FakeWorker
from tests.service.dictation.conftest import VIEW, spec

TALK = cut(spoken(0.3, 1, 0.3, 2, 0.8, 3, 0.2), 4_800)
"""In the first pause the session thinks that the utterance has ended; the second ends it."""
LECTURE = cut(spoken(1, 12.0, 2, 15.0, 3, 8.0, 4, 0.2), 120_000)
"""One whole window and the beginning of another."""


class MortalStored:
    """A session's files, of a service that dies with its fuse: before a write, in it, or after it."""

    def __init__(self, stored: Any, fuse: Fuse) -> None:
        self._stored = stored
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    async def tell(self, record: bytes, *, sync: bool) -> None:
        await self._fuse.step()
        await self._stored.tell(record, sync=sync)
        await self._fuse.step()

    async def append(self, *given: Any) -> None:
        await self._fuse.step()
        await self._stored.append(*given)
        await self._fuse.step()


@dataclass
class Client:
    """Sends the recording, each chunk until it was acknowledged, and reads the events; it outlives the service."""

    pieces: list[bytes]
    acknowledged: list[Accepted] = field(default_factory=list)
    seen: list[tuple[int | None, Mapping[str, Any]]] = field(default_factory=list)
    transcript: Transcript | None = None

    async def dictate(self, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(session))
            for seq in range(len(self.acknowledged), len(self.pieces)):
                chunk = Chunk(S16 if seq % 5 else None, self.pieces[seq])
                self.acknowledged.append(await session.add(seq, chunk))
                # Let the session work between two chunks, as it does in life.
                for _ in range(100):
                    await asyncio.sleep(0)
            self.transcript = await session.finish()
            await reading

    async def _read(self, session: Session) -> None:
        after = max((number for number, _ in self.seen if number is not None), default=0)
        async for number, event in session.events(after):
            if number is not None:
                self.seen.append((number, event))


async def one_life(folder: Path, asked: Spec, client: Client, fuse: Fuse) -> None:
    """Serve the client until it has its transcript or the service dies."""
    with Store(folder, None) as store:
        stored: Any = MortalStored((store.recover() or [store.create(asked)])[0], fuse)
        live, whisper = FusedWorker("live", ears(limit=100_000), fuse), FusedWorker("whisper", pen(), fuse)
        session = Session(stored, live=live, whisper=whisper, model="whisper-base", turns=Turns(), max_seconds=100.0)
        working = asyncio.create_task(serve(session, client))
        dying = asyncio.create_task(fuse.blown.wait())
        await asyncio.wait((working, dying), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait((working, dying))


async def serve(session: Session, client: Client) -> None:
    for seq, answer in enumerate(client.acknowledged):
        assert session._answer(seq) == answer
    if session.last_event == 0:
        await session.begin(VIEW)
    session.start()
    await client.dictate(session)


def outcome(client: Client) -> tuple[Any, ...]:
    """What must not depend on when the service was killed."""
    assert client.transcript is not None
    events = [event for _, event in client.seen if event["type"] != "transcript.text.done"]
    ordered = sorted(map(msgspec.json.encode, events))
    meta = client.transcript.meta
    return client.transcript.segments, meta.language, meta.language_probability, meta.duration, ordered


@pytest.mark.parametrize(
    ("segmentation", "pieces", "said"),
    [("vad", TALK, "word1 word2 word3"), ("window", LECTURE, "word1 word2 word3 word4")],
)
def test_killed_at_any_point_it_ends_with_the_same_text_and_events(
    tmp_path: Path, segmentation: str, pieces: list[bytes], said: str
) -> None:
    asked = spec(segmentation=segmentation, partials=True)
    quiet, whole = Fuse(), Client(pieces)
    asyncio.run(one_life(tmp_path / "whole", asked, whole, quiet))
    assert whole.transcript is not None
    assert whole.transcript.text == said
    deaths = 0
    for at in range(1, quiet.steps + 1):
        client, fuse = Client(pieces), Fuse(at)
        asyncio.run(one_life(tmp_path / str(at), asked, client, fuse))
        deaths += client.transcript is None
        if client.transcript is None:
            asyncio.run(one_life(tmp_path / str(at), asked, client, Fuse()))
        assert outcome(client) == outcome(whole), f"killed at step {at}"
        assert [number for number, _ in client.seen] == list(range(1, len(client.seen) + 1)), f"killed at step {at}"
    assert deaths > 40


def test_killed_again_and_again_it_still_ends_with_the_same_text(tmp_path: Path) -> None:
    asked = spec()
    whole, client = Client(TALK), Client(TALK)
    asyncio.run(one_life(tmp_path / "whole", asked, whole, Fuse()))
    deaths = 0
    while client.transcript is None:
        deaths += 1
        asyncio.run(one_life(tmp_path / "killed", asked, client, Fuse(deaths)))
    assert outcome(client) == outcome(whole)
    assert deaths > 10


def test_a_finished_session_is_finished_after_a_restart_too(tmp_path: Path) -> None:
    client = Client(TALK)
    asyncio.run(one_life(tmp_path, spec(), client, Fuse()))
    before, client.transcript = client.transcript, None
    asyncio.run(one_life(tmp_path, spec(), client, Fuse()))
    assert client.transcript == before


def test_a_failed_session_has_failed_after_a_restart_too(tmp_path: Path) -> None:
    async def life(whisper: FakeWorker) -> list[tuple[int | None, Mapping[str, Any]]]:
        with Store(tmp_path, None) as store:
            stored = (store.recover() or [store.create(spec())])[0]
            live = FakeWorker("live", ears())
            session = Session(
                stored, live=live, whisper=whisper, model="whisper-base", turns=Turns(), max_seconds=100.0
            )
            if session.last_event == 0:
                await session.begin(VIEW)
                await session.add(None, Chunk(S16, b"".join(TALK)))
            session.start()
            with pytest.raises(SessionFailed):
                await session.finish()
            events = [event async for event in session.events()]
            await session.stop()
            assert stored.samples == len(b"".join(TALK)) // 2
            return events

    first = asyncio.run(life(FakeWorker("whisper", {Transcribe: [InvalidRequest("no")]})))
    assert asyncio.run(life(FakeWorker("whisper", pen()))) == first
