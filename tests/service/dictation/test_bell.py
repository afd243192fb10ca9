"""Waiting for each other, and calling each other's work off."""

from __future__ import annotations

import asyncio

import pytest

from service.dictation.bell import Bell, Errand, to_the_end

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_all_who_wait_look_when_it_rings() -> None:
    bell, there = Bell(), list[int]()

    async def waits(count: int) -> int:
        await bell.until(lambda: len(there) >= count)
        return len(there)

    waiting = [asyncio.create_task(waits(count)) for count in (0, 1, 2)]
    for number in range(2):
        await asyncio.sleep(0)
        there.append(number)
        bell.ring()
    assert [await task for task in waiting] == [0, 1, 2]


async def test_an_errand_that_is_called_off_is_cancelled_and_has_no_result() -> None:
    errand, never = Errand(), asyncio.Event()
    running = asyncio.create_task(errand.run(never.wait()))
    await asyncio.sleep(0)
    assert errand.busy
    errand.call_off()
    errand.call_off()
    assert await running is None
    assert not errand.busy


async def test_an_errand_keeps_its_own_timeouts_and_failures() -> None:
    async def late() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await Errand().run(late())


async def test_who_is_cancelled_leaves_when_the_work_has_ended() -> None:
    gate, ended = asyncio.Event(), list[str]()

    async def work() -> None:
        await gate.wait()
        ended.append("work")

    async def caller() -> None:
        try:
            await to_the_end(work())
        finally:
            ended.append("caller")

    calling = asyncio.create_task(caller())
    await asyncio.sleep(0)
    calling.cancel()
    await asyncio.sleep(0)
    calling.cancel()
    gate.set()
    await asyncio.wait([calling])
    assert calling.cancelled()
    assert ended == ["work", "caller"]
