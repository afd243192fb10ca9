"""A session over real workers, which are killed while it is spoken."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protocol.jobs import Decoding, Job
from protocol.settings import MediaSettings, WhisperSettings
from service.dictation.chunk import Chunk
from service.dictation.session import Session
from service.dictation.store import Store
from service.dictation.turns import Turns
from service.transcripts import Transcript
from service.worker import Pool
from tests.dictated import S16
from tests.service.dictation.conftest import VIEW, spec
from tests.speech import timeline

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.timeout(600)]

GARDEN = "The children are playing in the garden."
STATION = "We will meet at the station tomorrow morning."


@asynccontextmanager
async def workers(data_dir: Path) -> AsyncIterator[tuple[Pool, Pool]]:
    def stall(_: Job) -> float:
        return 120.0

    whisper_settings = WhisperSettings("whisper-tiny.en", str(data_dir), offline=True)
    live = Pool("live", MediaSettings(), processes=1, queue_limit=64, start_wait=120.0, stall=stall)
    whisper = Pool("whisper", whisper_settings, processes=1, queue_limit=64, start_wait=120.0, stall=stall)
    await asyncio.gather(live.start(), whisper.start())
    try:
        yield live, whisper
    finally:
        await asyncio.gather(live.stop(0), whisper.stop(0))


async def dictated(store: Store, name: str, live: Pool, whisper: Pool, kill_at: tuple[int, ...] = ()) -> Transcript:
    """Two sentences in pieces of 0.1 s, twenty times as fast as they are spoken; before those pieces workers die."""
    audio = timeline(0.5, GARDEN, 1.2, STATION, 0.3).tobytes()
    decoding = Decoding(language="en", audio_ctx="auto", silence_rule=True, words=True)
    stored = store.create(spec(id=name, decoding=decoding, partials=True))
    session = Session(stored, live=live, whisper=whisper, model="whisper-base", turns=Turns(), max_seconds=60.0)
    await session.begin(VIEW)
    session.start()
    try:
        for number, at in enumerate(range(0, len(audio), 3200)):
            if number in kill_at:
                for pool in (live, whisper):
                    kill(pool)
            await session.add(number, Chunk(S16, audio[at : at + 3200]))
            await asyncio.sleep(0.005)
        return await session.finish()
    finally:
        await session.stop()


def kill(pool: Pool) -> None:
    (process,) = pool.stats()
    if process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)


async def test_workers_that_are_killed_change_nothing(tmp_path: Path, model_data_dir: Path) -> None:
    with Store(tmp_path, None) as store:
        async with workers(model_data_dir) as (live, whisper):
            undisturbed = await dictated(store, "a", live, whisper)
            disturbed = await dictated(store, "b", live, whisper, kill_at=(12, 40))
    assert undisturbed.text == f"{GARDEN} {STATION}"
    assert disturbed.segments == undisturbed.segments
    assert [word.word for segment in disturbed.segments for word in segment.words or ()][:2] == [" The", " children"]
