"""A store in a folder of its own, and sessions over workers that are scripts (tests/dictated.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protocol.jobs import Decoding
from service.dictation.chunk import Chunk
from service.dictation.session import Accepted, Session
from service.dictation.spec import Spec
from service.dictation.store import Store, Stored
from service.dictation.turns import Turns
from tests.dictated import S16, cut, ears, pen
from tests.fakes import FakeWorker


def spec(**given: Any) -> Spec:
    defaults: dict[str, Any] = {
        "id": "a1",
        "created": 1_700_000_000,
        "model": "whisper-base",
        "task": "transcribe",
        "segmentation": "vad",
        "vad_silence_ms": 500,
        "vad_threshold": 0.5,
        "vad_min_speech_ms": 250,
        "partials": False,
        "response_format": "verbose_json",
        "decoding": Decoding(audio_ctx="auto", silence_rule=True),
    }
    return Spec(**(defaults | given))


@dataclass
class Dictation:
    """A session, the workers behind it, and its files."""

    session: Session
    stored: Any
    live: FakeWorker
    whisper: FakeWorker
    answers: list[Accepted] = field(default_factory=list)

    async def say(self, audio: bytes, samples: int = 1600) -> None:
        """Send raw audio in numbered chunks."""
        for piece in cut(audio, samples):
            self.answers.append(await self.session.add(len(self.answers), Chunk(S16, piece)))

    async def events(self, after: int | None = None) -> list[tuple[int | None, Mapping[str, Any]]]:
        """All, to the end of the session."""
        return [event async for event in self.session.events(after)]

    async def until(self, kind: str) -> Mapping[str, Any]:
        """The first event of that type, once it is told."""
        async with asyncio.timeout(10):
            async for _, event in self.session.events(None):
                if event["type"] == kind:
                    return event
        raise AssertionError(f"the session ended without {kind}")


VIEW = {"id": "a1", "model": "whisper-base", "state": "open"}


@asynccontextmanager
async def dictation(
    stored: Any,
    live: FakeWorker | None = None,
    whisper: FakeWorker | None = None,
    max_seconds: float = 3600.0,
    turns: Turns | None = None,
) -> AsyncIterator[Dictation]:
    """The session over these files, at work until the context ends."""
    live, whisper = live or FakeWorker("live", ears()), whisper or FakeWorker("whisper", pen())
    session = Session(
        stored, live=live, whisper=whisper, model="whisper-base", turns=turns or Turns(), max_seconds=max_seconds
    )
    if session.last_event == 0:
        await session.begin(VIEW)
    session.start()
    try:
        yield Dictation(session, stored, live, whisper)
    finally:
        await session.stop()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path, None) as opened:
        yield opened


@pytest.fixture
def stored(store: Store) -> Stored:
    return store.create(spec())
