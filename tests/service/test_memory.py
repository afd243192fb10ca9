"""Which model leaves memory, and when. The pools are fakes that say how much they take."""

from __future__ import annotations

import asyncio
import logging

import pytest

from protocol.events import Ready
from service.memory import Keeper
from tests.fakes import FakeWorker

pytestmark = pytest.mark.anyio

GIB = 1 << 30


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pool(name: str, *, used_at: float = 0.0, gib: int = 1) -> FakeWorker:
    made = FakeWorker(name, {}, ready=Ready(1))
    made.used_at, made.rss_bytes = used_at, gib * GIB
    return made


def states(*pools: FakeWorker) -> list[str]:
    return [each.state for each in pools]


async def test_the_model_that_was_used_longest_ago_goes_first_and_no_more_than_must() -> None:
    middle, oldest, newest = pool("a", used_at=2), pool("b", used_at=1), pool("c", used_at=3)
    models = (middle, oldest, newest)
    await Keeper(models, models, 2 * GIB).look()
    assert states(*models) == ["ready", "idle", "ready"]
    await Keeper(models, models, GIB).look()
    assert states(*models) == ["idle", "idle", "ready"]


async def test_nothing_goes_while_all_fits() -> None:
    models = (pool("a"), pool("b"))
    await Keeper(models, models, 2 * GIB).look()
    assert states(*models) == ["ready", "ready"]


async def test_a_model_with_a_request_in_flight_stays() -> None:
    busy, idle, last = pool("a", used_at=1), pool("b", used_at=2), pool("c", used_at=3)
    busy.running = 1
    models = (busy, idle, last)
    await Keeper(models, models, GIB).look()
    assert states(*models) == ["ready", "idle", "ready"]


async def test_the_one_that_was_used_last_stays_even_alone_over_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    models = (pool("a", gib=8),)
    keeper = Keeper(models, models, GIB)
    with caplog.at_level(logging.WARNING):
        await keeper.look()
        await keeper.look()
    assert states(*models) == ["ready"]
    assert [record.getMessage() for record in caplog.records] == [
        "the workers take 8192 MiB, more than the 1024 allowed, and all that is loaded is in use or was used last"
    ]


async def test_what_the_other_workers_take_counts_but_they_stay() -> None:
    media, old, new = pool("media", gib=3), pool("a", used_at=1), pool("b", used_at=2)
    await Keeper((media, old, new), (old, new), 4 * GIB).look()
    assert states(media, old, new) == ["ready", "idle", "ready"]


async def test_there_is_room_before_a_model_that_was_there_once_has_loaded_again() -> None:
    large, small = pool("large", used_at=1, gib=4), pool("small", used_at=2)
    models = (large, small)
    keeper = Keeper(models, models, 4 * GIB)
    await keeper.look()
    assert states(*models) == ["idle", "ready"]
    large.state, large.used_at = "starting", 3
    await keeper.look()
    assert states(*models) == ["starting", "idle"]


async def test_without_a_limit_nobody_looks() -> None:
    models = (pool("a", gib=100), pool("b", gib=100))
    async with Keeper(models, models, 0).watching():
        await asyncio.sleep(0.01)
    assert states(*models) == ["ready", "ready"]


async def test_it_looks_as_long_as_it_is_told_to() -> None:
    models = (pool("a", used_at=1), pool("b", used_at=2))
    async with Keeper(models, models, GIB).watching(), asyncio.timeout(5):
        while models[0].state == "ready":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert "memory" not in [task.get_name() for task in asyncio.all_tasks()]
