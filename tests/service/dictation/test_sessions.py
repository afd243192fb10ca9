"""How long sessions live, and what a service finds of an earlier one's."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import msgspec
import pytest

from protocol.errors import DiskFull, ShuttingDown, UnknownSession
from protocol.jobs import Transcribe
from service.dictation.request import SessionRequest
from service.dictation.session import Session
from tests.dictated import spoken, text
from tests.dictating import Dictating, dictating
from tests.scripted import MULTILINGUAL

pytestmark = pytest.mark.anyio

TALK = spoken(0.3, 1, 2, 1.0, 3, 0.3)


async def reason(service: Dictating, id: str) -> str:
    """Why the session was closed, once it is."""
    async with asyncio.timeout(20):
        async for _, event in service.house.sessions.session(id).events():
            if event["type"] == "session.closed":
                return str(event["reason"])
    raise AssertionError("the session's events ended before it was closed")


async def removed(service: Dictating, id: str) -> None:
    """Until the session is no more."""
    async with asyncio.timeout(20):
        while id in [view.id for view in service.house.sessions.views()] or service.left:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_session_without_audio_finishes_by_itself_and_keeps_its_text(tmp_path: Path) -> None:
    async with dictating(tmp_path, session_idle=0.5) as service:
        id = await service.create()
        await service.say(id, TALK)
        assert await reason(service, id) == "expired"
        assert service.house.sessions.view(id).state == "finished"
        assert service.house.sessions.view(id).text == text(1, 2, 3)
        assert (await service.finish(id)).json["text"] == text(1, 2, 3)


async def test_audio_keeps_a_session_from_finishing(tmp_path: Path) -> None:
    async with dictating(tmp_path, session_idle=1.0) as service:
        silent, spoken_to = await service.create(), await service.create()
        closed = asyncio.create_task(reason(service, silent))
        while not closed.done():
            await service.send(spoken_to, spoken(0.1))
            await asyncio.wait([closed], timeout=0.05)
        assert service.house.sessions.view(spoken_to).state == "open"


async def test_a_finished_session_is_removed_when_it_was_kept_long_enough(tmp_path: Path) -> None:
    async with dictating(tmp_path, session_keep=0.2) as service:
        id = await service.create()
        await service.say(id, TALK)
        await service.finish(id)
        assert service.house.sessions.view(id).text == text(1, 2, 3)
        await removed(service, id)
        assert service.left == []


async def test_what_was_left_goes_on(tmp_path: Path) -> None:
    async with dictating(tmp_path) as service:
        talking, finished, empty = [await service.create() for _ in range(3)]
        await service.say(talking, TALK[: len(TALK) // 2])
        await service.say(finished, TALK)
        before = (await service.finish(finished)).body
    async with dictating(tmp_path) as service:
        assert {view.id for view in service.house.sessions.views()} == {talking, finished, empty}
        assert (await service.finish(finished)).body == before
        half = len(TALK) // 2
        count = -(-half // 3200)
        assert (await service.send(talking, TALK[half:], seq=count)).json["samples"] == len(TALK) // 2
        assert (await service.finish(talking)).json["text"] == text(1, 2, 3)
        assert (await service.finish(empty)).json["text"] == ""


async def test_after_a_restart_speech_is_heard_with_that_before_it_also_while_the_worker_loads(tmp_path: Path) -> None:
    """Alone it may be understood otherwise, and the session would end with another text."""
    first, second = spoken(0.3, 1, 2, 1.0), spoken(3, 0.3)
    async with dictating(tmp_path) as service:
        id = await service.create()
        chunks = len(await service.say(id, first))
        async with asyncio.timeout(20):
            while service.house.sessions.view(id).text != text(1, 2):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    async with dictating(tmp_path) as service:
        service.whisper.ready = None
        await service.send(id, second, seq=chunks)
        assert (await service.finish(id)).json["text"] == text(1, 2, 3)
        jobs = [job for job in service.whisper.jobs if isinstance(job, Transcribe)]
        assert jobs and all(job.context is not None for job in jobs)


async def test_the_answer_names_the_model_that_wrote_last(tmp_path: Path) -> None:
    async with dictating(tmp_path) as service:
        begun, finished = await service.create(), await service.create()
        for id in (begun, finished):
            await service.say(id, TALK)
        before = await service.finish(finished)
    async with dictating(tmp_path, model=msgspec.structs.replace(MULTILINGUAL, id="whisper-tiny")) as service:
        assert service.house.sessions.view(begun).model == "whisper-base"
        reply = await service.finish(begun)
        assert (reply.json["starling"]["model"], reply.headers["x-starling-model"]) == ("whisper-tiny", "whisper-tiny")
        assert service.house.sessions.view(begun).model == "whisper-tiny"
        again = await service.finish(finished)
        assert (again.body, again.headers["x-starling-model"]) == (before.body, "whisper-base")
    async with dictating(tmp_path) as service:
        assert (await service.finish(begun)).json == reply.json


async def test_a_session_that_was_finishing_finishes_in_the_next_service(tmp_path: Path) -> None:
    async with dictating(tmp_path, whisper={Transcribe: [asyncio.Event()]}) as service:
        id = await service.create()
        await service.say(id, TALK)
        finishing = asyncio.create_task(service.finish(id))
        await service.until_state(id, "finishing")
        await service.house.stop(5)
        assert (await finishing).error == (503, "shutting_down", None)
    async with dictating(tmp_path) as service:
        assert await reason(service, id) == "finished"
        assert service.house.sessions.view(id).text == text(1, 2, 3)


async def test_time_without_a_service_is_not_held_against_a_session(tmp_path: Path) -> None:
    async with dictating(tmp_path) as service:
        id = await service.create()
        mark = tmp_path / "sessions" / id / "life"
    mark.write_text(json.dumps({"ended": False, "age": 500.0}))
    async with dictating(tmp_path) as service:
        left = service.house.sessions.view(id).expires_at - service.house.sessions.view(id).created
        assert 98 <= left <= 130


async def test_one_session_that_cannot_be_read_keeps_no_service_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with dictating(tmp_path) as service:
        good, bad = await service.create(), await service.create()
    conducted = Session.start

    def start(session: Session) -> None:
        if session.spec.id == bad:
            raise RuntimeError("a bug")
        conducted(session)

    monkeypatch.setattr(Session, "start", start)
    async with dictating(tmp_path) as service:
        assert [view.id for view in service.house.sessions.views()] == [good]
    assert f"dictation {bad} cannot go on" in caplog.text
    assert (tmp_path / "sessions" / bad / "session.json").exists()


async def test_a_session_that_cannot_be_begun_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(session: Session, view: object) -> None:
        raise DiskFull("the server's disk is full")

    async with dictating(tmp_path) as service:
        monkeypatch.setattr(Session, "begin", begin)
        with pytest.raises(DiskFull):
            await service.house.sessions.create(SessionRequest(), "whisper-base", None)
        assert service.house.sessions.views() == []
        assert service.left == []


async def test_a_service_that_stops_takes_neither_sessions_nor_audio(tmp_path: Path) -> None:
    async with dictating(tmp_path) as service:
        id = await service.create()
        await service.house.stop(5)
        with pytest.raises(ShuttingDown):
            await service.house.sessions.create(SessionRequest(), "whisper-base", None)
        assert (await service.send(id, spoken(0.1))).error == (503, "shutting_down", None)
        await service.house.stop(5)


async def test_deleting_twice_at_once_is_no_harm(tmp_path: Path) -> None:
    async with dictating(tmp_path) as service:
        id = await service.create()
        await asyncio.gather(service.house.sessions.remove(id), service.house.sessions.remove(id))
        assert service.left == []
        with pytest.raises(UnknownSession):
            await service.house.sessions.remove(id)


async def test_a_session_that_could_not_be_finished_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    finished, refused = Session.finish, asyncio.Event()

    async def finish(session: Session, why: str = "finished") -> object:
        if not refused.is_set():
            refused.set()
            raise DiskFull("the server's disk is full")
        return await finished(session, why)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "finish", finish)
    async with dictating(tmp_path, session_idle=0.2) as service:
        id = await service.create()
        assert await reason(service, id) == "expired"
    assert f"dictation {id} cannot be finished now" in caplog.text
