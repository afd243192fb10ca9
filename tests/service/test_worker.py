"""A pool of real processes (tests/counter.py) that crash, hang, babble and count."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from protocol.errors import (
    Failure,
    InternalError,
    InvalidValue,
    ModelNotConfigured,
    QueueFull,
    RequestTimeout,
    ShuttingDown,
    WorkerCrashed,
    WorkerStarting,
)
from protocol.events import Decoded, Doubt, Event, Loading, Progress, Ready, Segment
from protocol.jobs import Decode, DetectSpeech, Follow, Heard, Job, Pcm, Transcribe
from protocol.settings import MediaSettings, Settings
from service import process
from service.patience import HELD_UP_S
from service.timing import Timing
from service.worker import Pool, ProcessStats

pytestmark = pytest.mark.anyio

COUNTER = (sys.executable, "-P", str(Path(__file__).parents[1] / "counter.py"))
QUICK = Timing(first_backoff=0.02, longest_backoff=0.1)
NEVER = 1000.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves a child process or an open file behind."""
    me = psutil.Process()
    before = set(me.children(recursive=True))
    yield
    assert set(me.children(recursive=True)) - before == set()


@asynccontextmanager
async def pool(*options: str, **settings: Any) -> AsyncIterator[Pool]:
    defaults: dict[str, Any] = {"processes": 1, "queue_limit": 100, "start_wait": NEVER, "timing": QUICK}
    settings = defaults | settings
    limit: float = settings.pop("stall", NEVER)
    made = Pool("counter", MediaSettings(), stall=lambda job: limit, command=(*COUNTER, *options), **settings)
    await made.start()
    try:
        yield made
    finally:
        await made.stop(grace=0)


async def run(worker: Pool, source: str) -> list[Event]:
    return await drained(worker, Decode(source=source, target=""))


async def drained(worker: Pool, job: Job) -> list[Event]:
    return [event async for event in worker.run(job)]


async def samples(worker: Pool, source: str) -> int:
    *_, last = await run(worker, source)
    assert isinstance(last, Decoded)
    return last.samples


async def failure(worker: Pool, source: str) -> Failure:
    with pytest.raises(Failure) as caught:
        await run(worker, source)
    return caught.value


def be_stopped(seconds: float) -> None:
    """As Ctrl-Z, a debugger or a frozen container stops the service."""
    time.sleep(seconds)


@asynccontextmanager
async def begun(worker: Pool, source: str) -> AsyncIterator[asyncio.Task[list[Event]]]:
    """A job that has said something, its rest read by a task."""
    async with aclosing(worker.run(Decode(source=source, target=""))) as events:
        await anext(events)

        async def rest() -> list[Event]:
            return [event async for event in events]

        reading = asyncio.create_task(rest())
        try:
            yield reading
        finally:
            reading.cancel()
            await asyncio.wait([reading])


async def until(condition: Callable[[], bool]) -> None:
    """Until another process has done what a test is about; nothing else tells of it."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def until_waiting(worker: Pool, jobs: int) -> None:
    await until(lambda: worker.stats()[0].queued == jobs)


async def until_all_ready(worker: Pool) -> None:
    await until(lambda: all(line.state == "ready" for line in worker.stats()))


def fifo(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "fifo"
    os.mkfifo(path)
    return path


def gone(process: psutil.Process) -> bool:
    """Ended; perhaps not reaped yet, by whoever inherited it."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def files(pid: int | None) -> list[str]:
    return sorted(str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir())


def restarts(worker: Pool) -> int:
    return sum(line.restarts for line in worker.stats())


# --- jobs ------------------------------------------------------------------------------------------------------------


async def test_a_job_s_events_come_in_order_and_the_terminal_one_last() -> None:
    async with (
        pool() as worker,
        aclosing(worker.run(Decode(source="flood:3", target=""))) as events,
    ):
        kinds = [type(event) async for event in events]
    assert kinds == [Segment, Segment, Segment, Decoded]


async def test_a_refusal_is_raised_as_its_class_with_the_field_at_fault() -> None:
    async with pool() as worker:
        refused = await failure(worker, "refuse")
        assert (type(refused), refused.message, refused.param) == (InvalidValue, "this one is refused", "file")
        assert restarts(worker) == 0


async def test_a_full_queue_refuses_at_once_and_loses_nothing(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool("capacity=1", queue_limit=2) as worker, begun(worker, f"fifo:{gate}") as running:
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(samples(worker, f"count:{n}")) for n in (1, 2)]
            await until_waiting(worker, 2)
            assert isinstance(await failure(worker, "count:3"), QueueFull)
            gate.write_bytes(b"")
        assert [task.result() for task in waiting] == [1, 2]
        assert len(await running) == 1


async def test_jobs_wait_for_room_in_the_order_they_came(tmp_path: Path) -> None:
    gate, ended = fifo(tmp_path), []

    async def one(number: int) -> None:
        ended.append(await samples(worker, f"count:{number}"))

    async with pool("capacity=1") as worker, begun(worker, f"fifo:{gate}"), asyncio.TaskGroup() as group:
        for position, number in enumerate((5, 3, 4), start=1):
            group.create_task(one(number))
            await until_waiting(worker, position)
        gate.write_bytes(b"")
    assert ended == [5, 3, 4]


async def test_a_process_holds_no_more_jobs_than_its_capacity() -> None:
    async with pool("capacity=2") as worker, begun(worker, "hold"), begun(worker, "hold"):
        third = asyncio.create_task(run(worker, "count:1"))
        await until_waiting(worker, 1)
        assert worker.stats()[0].running == 2
        third.cancel()
        await asyncio.wait([third])
        assert (worker.stats()[0].queued, worker.stats()[0].running) == (0, 2)


async def test_the_least_busy_process_gets_the_job() -> None:
    async with pool("capacity=3", processes=2) as worker:
        await samples(worker, "count:1")
        await until_all_ready(worker)
        async with begun(worker, "hold"):
            first_busy = [line.running for line in worker.stats()]
            async with begun(worker, "hold"):
                assert sorted(first_busy) == [0, 1]
                assert [line.running for line in worker.stats()] == [1, 1]


async def test_a_slow_reader_holds_up_nobody_and_finds_only_the_newest_progress() -> None:
    async with pool() as worker, aclosing(worker.run(Decode(source="count:500", target=""))) as slow:
        first = await anext(slow)
        assert isinstance(first, Progress)
        assert await samples(worker, "count:600") == 600
        rest = [event async for event in slow]
    assert rest == [
        Progress(done=500, total=500),
        Decoded(samples=500, decoder="soundfile", container="counter", elapsed_ms=0.0),
    ]


async def test_a_reader_that_stops_reading_loses_its_job_and_no_memory() -> None:
    async with pool(timing=Timing(backlog=50)) as worker:
        async with aclosing(worker.run(Decode(source="flood:2000", target=""))) as stuck:
            await anext(stuck)
            assert await samples(worker, "count:1") == 1
            with pytest.raises(RequestTimeout):
                rest = [event async for event in stuck]
                assert rest == []
        assert await samples(worker, "count:2") == 2
        assert restarts(worker) == 0


# --- doubts ----------------------------------------------------------------------------------------------------------


async def test_an_answer_goes_down_to_the_job_that_asked() -> None:
    async with (
        pool(processes=2) as worker,
        begun(worker, "hold"),
        aclosing(worker.run(Decode(source="doubt:3", target=""))) as events,
    ):
        assert await anext(events) == Doubt(0, 1)
        assert await events.asend(Heard(speech=True)) == Doubt(1, 2)
        assert await events.asend(Heard(speech=False)) == Doubt(2, 3)
        end = await events.asend(Heard(speech=True))
        assert isinstance(end, Decoded)
        assert end.samples == 2


async def test_who_reads_on_without_an_answer_says_that_there_is_speech() -> None:
    async with pool() as worker:
        assert await samples(worker, "doubt:3") == 3


async def test_waiting_for_an_answer_is_no_stall_but_silence_after_it_is() -> None:
    async with (
        pool("capacity=1", stall=0.3) as worker,
        aclosing(worker.run(Decode(source="doubt:1", target=""))) as events,
    ):
        await anext(events)
        pid = worker.stats()[0].pid
        await asyncio.sleep(0.6)
        assert isinstance(await events.asend(Heard(speech=False)), Decoded)
        assert await samples(worker, "pid") == pid
        assert isinstance(await failure(worker, "hold"), WorkerCrashed)


async def test_leaving_a_job_in_doubt_frees_its_room() -> None:
    async with pool("capacity=1") as worker:
        async with aclosing(worker.run(Decode(source="doubt:2", target=""))) as events:
            await anext(events)
        assert await samples(worker, "count:1") == 1
        assert restarts(worker) == 0


async def test_after_a_crash_a_doubt_is_asked_again_and_an_answer_to_the_dead_is_nobody_s() -> None:
    async with pool("capacity=2") as worker, aclosing(worker.run(Decode(source="doubt:2", target=""))) as events:
        assert await anext(events) == Doubt(0, 1)
        pid = worker.stats()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: worker.stats()[0].running == 1 and worker.stats()[0].pid != pid)
        assert await events.asend(Heard(speech=True)) == Doubt(0, 1)
        assert await events.asend(Heard(speech=False)) == Doubt(1, 2)
        end = await events.asend(Heard(speech=True))
        assert isinstance(end, Decoded)
        assert end.samples == 1


@pytest.mark.parametrize(
    "job", [Transcribe(Pcm("", 0, 1), urgent=True), Follow((), "", 0, 0), DetectSpeech(Pcm("", 0, 1))]
)
async def test_there_is_always_room_for_who_waits_while_speaking(job: Job) -> None:
    async with pool("capacity=8", queue_limit=1) as worker:
        assert await samples(worker, "count:1") == 1
        files = [asyncio.create_task(run(worker, "hold")) for _ in range(8)]
        await until_waiting(worker, 1)
        # The counter knows no such job: that it says so shows that it got it.
        with pytest.raises(InternalError):
            await drained(worker, job)
        assert isinstance(await failure(worker, "hold"), QueueFull)
        for task in files:
            task.cancel()
        await asyncio.wait(files)


async def test_what_a_running_job_waits_for_goes_before_what_came_first(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool("capacity=1") as worker, begun(worker, f"fifo:{gate}"):
        upload = asyncio.create_task(run(worker, "hold"))
        await until_waiting(worker, 1)
        looking = asyncio.create_task(drained(worker, DetectSpeech(Pcm("", 0, 1))))
        await until_waiting(worker, 2)
        gate.write_bytes(b"")
        # The counter knows no such job: that it says so shows that it got it first.
        with pytest.raises(InternalError):
            await looking
        assert not upload.done()
        upload.cancel()
        await asyncio.wait([upload])


# --- on demand -------------------------------------------------------------------------------------------------------


async def test_on_demand_there_is_no_process_before_the_first_job() -> None:
    async with pool(timing=Timing(on_demand=True)) as worker:
        await asyncio.sleep(0.1)
        assert (worker.stats()[0].state, worker.stats()[0].pid, worker.failure) == ("idle", None, None)
        assert await samples(worker, "count:3") == 3
        assert worker.stats()[0].state == "ready"


async def test_a_process_ends_when_nobody_has_needed_it_for_long_and_the_next_job_starts_another(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    async with pool(f"log={log}", timing=Timing(idle_end=0.2)) as worker:
        for _ in range(2):
            pid = await samples(worker, "pid")
            await until(lambda: worker.stats()[0].state == "idle")
            assert not psutil.pid_exists(pid)
        assert restarts(worker) == 0
    assert len(log.read_text().splitlines()) == 2


async def test_a_place_serves_also_while_its_idle_process_ends() -> None:
    """GET /ready would tell a load balancer to go elsewhere for a moment."""
    async with pool(timing=Timing(idle_end=0.1)) as worker:
        await samples(worker, "pid")
        seen = set[tuple[str, bool]]()
        while worker.stats()[0].state != "idle":
            seen.add((worker.stats()[0].state, worker.able))
            await asyncio.sleep(0)
        assert seen == {("ready", True), ("waiting", True)}
        assert worker.able


async def test_a_job_in_hand_keeps_its_process_from_being_idle() -> None:
    async with pool(timing=Timing(idle_end=0.1)) as worker, begun(worker, "hold"):
        pid = worker.stats()[0].pid
        await asyncio.sleep(0.4)
        assert await samples(worker, "pid") == pid


async def test_a_job_that_comes_as_an_idle_process_ends_gets_the_next(tmp_path: Path) -> None:
    """Jobs at all moments around the end; each is answered."""
    async with pool(timing=Timing(idle_end=0.05)) as worker:
        for delay in range(20):
            assert await samples(worker, "count:2") == 2
            await asyncio.sleep(0.04 + delay * 0.001)
        assert worker.failure is None


async def test_an_idle_process_is_kept_by_whoever_is_about_to_need_it() -> None:
    async with pool(timing=Timing(idle_end=0.3)) as worker:
        pid = await samples(worker, "pid")
        for _ in range(8):
            await asyncio.sleep(0.1)
            worker.touch()
        assert (worker.state, worker.stats()[0].pid) == ("ready", pid)


async def test_an_unloaded_pool_has_no_process_and_the_next_job_starts_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with pool(f"log={log}", processes=2) as worker:
        await until_all_ready(worker)
        pids = [line.pid for line in worker.stats()]
        assert await worker.unload() is None
        assert not any(psutil.pid_exists(pid) for pid in pids if pid)
        assert [(line.state, line.pid, line.rss_bytes) for line in worker.stats()] == [("idle", None, 0)] * 2
        assert (worker.able, await worker.unload()) == (True, "it is not loaded")
        assert await samples(worker, "pid") not in pids
        assert restarts(worker) == 0
    assert len(log.read_text().splitlines()) == 3


async def test_nothing_is_unloaded_under_a_job_that_runs_or_waits(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool("capacity=1") as worker, begun(worker, f"fifo:{gate}") as running:
        assert await worker.unload() == "a request is under way; try again later"
        waiting = asyncio.create_task(samples(worker, "count:2"))
        await until_waiting(worker, 1)
        assert worker.busy == 2
        gate.write_bytes(b"")
        assert (len(await running), await waiting) == (1, 2)
        assert await worker.unload() is None


async def test_nothing_is_unloaded_while_it_starts(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool(f"gate={gate}") as worker:
        await until(lambda: worker.loading is not None)
        assert await worker.unload() == "it is starting; try again later"
        gate.write_bytes(b"")


async def test_a_job_that_comes_while_its_pool_is_unloaded_gets_the_next_process() -> None:
    async with pool() as worker:
        for _ in range(5):
            before = await samples(worker, "pid")
            unloading = asyncio.create_task(worker.unload())
            await asyncio.sleep(0)
            assert await samples(worker, "pid") != before
            assert await unloading is None
        assert restarts(worker) == 0


async def test_a_process_that_dies_as_it_is_unloaded_is_not_started_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with pool(f"log={log}") as worker:
        pid = await samples(worker, "pid")
        os.kill(pid, signal.SIGKILL)
        assert await worker.unload() is None
        await asyncio.sleep(0.1)
        assert worker.state == "idle"
    assert len(log.read_text().splitlines()) == 1


async def test_a_pool_knows_when_it_was_used_last() -> None:
    loop = asyncio.get_running_loop()
    async with pool(timing=Timing(on_demand=True)) as worker:
        assert worker.used_at == 0.0
        before = loop.time()
        await samples(worker, "count:1")
        assert before <= worker.used_at <= loop.time()
        before = loop.time()
        worker.touch()
        assert worker.used_at >= before


async def test_on_demand_someone_who_is_about_to_need_a_process_has_one_started() -> None:
    async with pool(timing=Timing(on_demand=True)) as worker:
        await until(lambda: worker.state == "idle")
        worker.touch()
        await asyncio.sleep(0.05)
        assert worker.state == "idle"
        worker.touch(wake=True)
        await until(lambda: worker.state == "ready")


async def test_a_pool_serves_while_it_sleeps_and_wakes_but_not_while_it_first_starts(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool(f"gate={gate}", timing=Timing(on_demand=True)) as sleeper, asyncio.TaskGroup() as group:
        await until(lambda: sleeper.state == "idle")
        assert sleeper.able
        group.create_task(samples(sleeper, "count:1"))
        await until(lambda: sleeper.loading is not None)
        assert (sleeper.state, sleeper.able) == ("starting", True)
        async with pool(f"gate={fifo(tmp_path / 'other')}") as starter:
            await until(lambda: starter.loading is not None)
            assert (starter.state, starter.able) == ("starting", False)
        gate.write_bytes(b"")


async def test_on_demand_a_cancelled_blocking_job_starts_nothing_by_itself(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with pool("blocking", "capacity=1", f"log={log}", timing=Timing(on_demand=True)) as worker:
        async with begun(worker, "hang"):
            pass
        await until(lambda: worker.stats()[0].state == "idle")
        assert len(log.read_text().splitlines()) == 1
        assert await samples(worker, "count:1") == 1


async def test_on_demand_what_cannot_start_says_so() -> None:
    async with pool("refuse", timing=Timing(on_demand=True)) as worker:
        assert worker.failure is None
        assert isinstance(await failure(worker, "count:1"), ModelNotConfigured)
        assert worker.stats()[0].state == "broken"


# --- start -----------------------------------------------------------------------------------------------------------


async def test_jobs_wait_for_a_process_that_is_loading(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool(f"gate={gate}") as worker, asyncio.TaskGroup() as group:
        early = group.create_task(samples(worker, "count:2"))
        await until(lambda: worker.loading == Loading("held", done=1, total=2))
        assert worker.ready is None
        assert worker.stats()[0].state == "starting"
        gate.write_bytes(b"")
        assert await early == 2
        assert worker.ready == Ready(capacity=2)
        assert worker.loading is None


async def test_a_job_waits_no_longer_than_start_wait_for_a_start(tmp_path: Path) -> None:
    async with pool(f"gate={fifo(tmp_path)}", start_wait=0.05) as worker:
        overdue = await failure(worker, "count:1")
        assert (type(overdue), overdue.message) == (WorkerStarting, "no counter worker was ready within 0.05 s")
        assert worker.stats()[0].queued == 0


async def test_a_job_in_front_of_a_busy_process_waits_for_longer_than_start_wait(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool("capacity=1", start_wait=0.1) as worker:
        await until_all_ready(worker)
        async with begun(worker, f"fifo:{gate}"), asyncio.TaskGroup() as group:
            waiting = group.create_task(samples(worker, "count:1"))
            await asyncio.wait([waiting], timeout=0.3)
            gate.write_bytes(b"")
        assert waiting.result() == 1


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("fail", "it ended before it was ready (exit status 3)"),
        ("error", "it ended before it was ready (exit status 1)"),
        ("noise", "it sent noise: a frame of 1282367844 bytes is over 16777216 (signal 9)"),
        ("early", "it answered before it was ready (signal 9)"),
    ],
)
async def test_three_failed_starts_in_a_row_break_it(option: str, why: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with pool(option, f"log={log}") as worker:
        waited = await failure(worker, "count:1")
        at_once = await failure(worker, "count:1")
        assert worker.stats()[0].state == "broken"
    said = f"the counter worker failed to start 3 times in a row ({why}); the server's log has the details"
    assert [(type(each), each.message, each.retry) for each in (waited, at_once)] == [(WorkerCrashed, said, False)] * 2
    assert len(log.read_text().splitlines()) == 3


async def test_starting_a_broken_pool_again_gives_it_another_chance(tmp_path: Path) -> None:
    async with pool(f"log={tmp_path / 'log'}", "fail-first=3") as worker:
        assert isinstance(await failure(worker, "count:1"), WorkerCrashed)
        await worker.start()
        assert worker.failure is None
        assert await samples(worker, "count:1") == 1


async def test_two_failed_starts_break_nothing(tmp_path: Path) -> None:
    async with pool(f"log={tmp_path / 'log'}", "fail-first=2") as worker:
        assert await samples(worker, "count:1") == 1
        assert worker.failure is None


async def test_a_process_that_refuses_to_start_is_not_started_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with pool("refuse", f"log={log}") as worker:
        refused = await failure(worker, "count:1")
        assert (type(refused), refused.message, refused.retry) == (
            ModelNotConfigured,
            "there is no model; get one",
            False,
        )
        assert worker.failure is not None
        assert isinstance(await failure(worker, "count:1"), ModelNotConfigured)
    assert len(log.read_text().splitlines()) == 1


async def test_a_silent_start_is_killed(tmp_path: Path) -> None:
    timing = Timing(first_backoff=0.01, start_stall=0.4)
    async with pool(f"gate={fifo(tmp_path)}", timing=timing) as worker:
        broken = await failure(worker, "count:1")
    assert "it said nothing for 0.4 s while it loaded (signal 9)" in broken.message


async def test_a_command_that_cannot_be_run_is_tried_again_for_ever() -> None:
    worker = Pool(
        "lost",
        MediaSettings(),
        processes=1,
        queue_limit=1,
        start_wait=0.2,
        stall=lambda job: 1.0,
        command=("/nowhere/at/all",),
        timing=Timing(first_backoff=0.001, longest_backoff=0.01),
    )
    await worker.start()
    try:
        assert isinstance(await failure(worker, "count:1"), WorkerStarting)
        await until(lambda: restarts(worker) > 3)
        assert worker.failure is None
    finally:
        await worker.stop(0)


# --- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["crash", "exit:3", "exit:0", "exit:86", "noise", "hangup", "bug-step"])
async def test_a_job_that_ends_its_process_over_and_over_fails_alone(source: str) -> None:
    async with pool("capacity=1", timing=Timing(first_backoff=0.01, leave=0.05)) as worker:
        async with asyncio.TaskGroup() as group:
            poison = group.create_task(failure(worker, source))
            waiting = group.create_task(samples(worker, "count:3"))
        failed = poison.result()
        assert (type(failed), failed.retry) == (WorkerCrashed, False)
        assert failed.message == "the worker crashed 3 times in a row over this request: it is given up"
        assert waiting.result() == 3
        # Its first words are no proof: it is on trial from the second process on.
        assert restarts(worker) == 4


async def test_a_process_that_others_kill_is_hardly_the_job_s_fault(tmp_path: Path) -> None:
    if process._starved() is None:
        pytest.skip("the system does not count whom it kills for memory: any kill may be one of its own")
    gate = fifo(tmp_path)
    async with pool("capacity=1") as worker, asyncio.TaskGroup() as group:
        answer = group.create_task(samples(worker, f"fifo:{gate}"))
        last = await end_in_turn(worker, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGKILL)
        await holder(worker, other_than=last)
        await asyncio.to_thread(gate.write_bytes, b"")
        assert await answer == 0
        assert restarts(worker) == 5


async def test_nor_is_one_that_others_stop(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool("capacity=1", stall=1.5) as worker, asyncio.TaskGroup() as group:
        answer = group.create_task(samples(worker, f"fifo:{gate}"))
        last = await end_in_turn(worker, *[signal.SIGSTOP] * 4)
        await holder(worker, other_than=last)
        await asyncio.to_thread(gate.write_bytes, b"")
        assert await answer == 0


async def test_a_job_whose_processes_are_killed_over_and_over_is_given_up_all_the_same(tmp_path: Path) -> None:
    # What it says first is new, and so the first death is none of its.
    async with pool("capacity=1") as worker, begun(worker, f"fifo:{fifo(tmp_path)}") as given_up:
        await end_in_turn(worker, *[signal.SIGTERM] * 7)
        with pytest.raises(WorkerCrashed, match="the worker crashed 6 times in a row over this request"):
            await given_up
        assert await samples(worker, "count:1") == 1


async def end_in_turn(worker: Pool, *signals: signal.Signals) -> int | None:
    """Send each signal to another process that holds a job; the last one's pid."""
    last = None
    for each in signals:
        last = await holder(worker, other_than=last)
        os.kill(last, each)
    return last


async def holder(worker: Pool, other_than: int | None) -> int:
    """Of a job."""
    found: int | None = None
    while found in (None, other_than):
        await until(lambda: worker.stats()[0].running == 1)
        await asyncio.sleep(0.005)
        found = worker.stats()[0].pid
    assert found is not None
    return found


async def test_a_process_that_others_end_while_it_starts_has_not_failed_to(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool(f"gate={gate}", timing=Timing(first_backoff=0.01, failed_starts=2)) as worker:
        before = None
        for _ in range(4):
            await until(lambda before=before: worker.stats()[0].pid not in (None, before))  # type: ignore[misc]
            before = worker.stats()[0].pid
            assert before is not None
            os.kill(before, signal.SIGTERM)
        await asyncio.to_thread(gate.write_bytes, b"")
        assert await samples(worker, "count:2") == 2


@pytest.mark.parametrize("source", ["crash", "exit:3", "exit:0", "exit:86", "noise", "hangup", "bug-step"])
async def test_a_single_crash_fails_nobody(source: str, tmp_path: Path) -> None:
    async with pool("capacity=3", timing=Timing(first_backoff=0.01, leave=0.05)) as worker:
        async with asyncio.TaskGroup() as group:
            asked = [f"once:{tmp_path / 'seen'}:{source}", "count:200", "count:300", "count:400"]
            tasks = [group.create_task(samples(worker, each)) for each in asked]
        assert [task.result() for task in tasks] == [3, 200, 300, 400]
        assert restarts(worker) == 1


async def test_after_a_crash_every_event_comes_once(tmp_path: Path) -> None:
    async with pool("capacity=2") as worker, asyncio.TaskGroup() as group:
        talks = [
            group.create_task(drained(worker, Transcribe(Pcm(f"talk:9:{last}:{tmp_path / str(last)}", 0, 1))))
            for last in (0, 4, 8)
        ]
    for talk in talks:
        *segments, end = talk.result()
        assert [each.text for each in segments if isinstance(each, Segment)] == [f" word {n}" for n in range(9)]
        assert isinstance(end, Decoded)
        assert len(segments) == 9


async def test_where_an_engine_would_say_something_else_only_who_heard_nothing_is_tried_again(tmp_path: Path) -> None:
    async with pool("capacity=1", exact=False) as worker:
        silent = await drained(worker, Transcribe(Pcm(f"talk:2:0:{tmp_path / 'a'}", 0, 1)))
        assert [type(each) for each in silent] == [Segment, Segment, Decoded]
        with pytest.raises(WorkerCrashed, match="the worker crashed while it worked on this request") as caught:
            await drained(worker, Transcribe(Pcm(f"talk:2:1:{tmp_path / 'b'}", 0, 1)))
        assert caught.value.retry is None


async def test_what_was_in_a_process_that_died_is_tried_one_by_one_and_what_is_urgent_first(tmp_path: Path) -> None:
    log, gate = tmp_path / "log", fifo(tmp_path)
    urgent = Transcribe(Pcm("count:1", 0, 1), urgent=True)
    async with pool("capacity=8", f"admitted={log}") as worker, begun(worker, f"fifo:{gate}") as first:
        pid = worker.stats()[0].pid
        second = asyncio.create_task(samples(worker, "count:7"))
        speaking = asyncio.create_task(drained(worker, urgent))
        # They are in the process's pipe; its main thread is stuck.
        await until(lambda: worker.stats()[0].running == 3)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await speaking
        late = asyncio.create_task(samples(worker, "count:2"))
        await until(lambda: log.read_text().splitlines()[2:] == [f"fifo:{gate}"])
        await until(lambda: (worker.stats()[0].running, worker.stats()[0].queued) == (1, 2))
        gate.write_bytes(b"")
        assert (len(await first), await second, await late) == (1, 7, 2)
    assert log.read_text().splitlines() == [f"fifo:{gate}", "count:1", f"fifo:{gate}", "count:7", "count:2"]


async def test_a_job_that_got_further_than_before_shares_its_process_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with pool("capacity=2", f"admitted={log}") as worker, begun(worker, "hold"):
        long = asyncio.create_task(samples(worker, "count:100000"))
        await until(lambda: worker.stats()[0].running == 2)
        pid = worker.stats()[0].pid
        assert pid is not None
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        # The one that holds says nothing new, and so keeps the other out; it is not of interest here.
        await until(lambda: log.read_text().splitlines()[2:] == ["hold"])
        assert worker.stats()[0].running == 1
        long.cancel()
        await asyncio.wait([long])


async def test_a_crash_of_one_process_leaves_the_other_alone() -> None:
    async with pool("capacity=1", processes=2) as worker, begun(worker, "hold") as held:
        assert isinstance(await failure(worker, "crash"), WorkerCrashed)
        assert await samples(worker, "count:1") == 1
        assert not held.done()


async def test_backoff_doubles_up_to_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "starling.counter")
    async with pool(timing=Timing(first_backoff=0.01, longest_backoff=0.03)) as worker:
        await failure(worker, "exit:3")
        await samples(worker, "count:1")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"it ended (exit status 3); starting it again in {delay} s" for delay in ("0.01", "0.02", "0.03", "0.03")
    ]


async def test_a_healthy_time_forgives_earlier_crashes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "starling.counter")
    async with pool(timing=Timing(first_backoff=0.01, healthy_after=0.0)) as worker:
        await failure(worker, "exit:3")
        await samples(worker, "count:1")
    assert [each.getMessage()[-6:] for each in caplog.records if each.levelname == "WARNING"] == ["0.01 s"] * 4


async def test_a_job_done_to_its_end_forgives_earlier_crashes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "starling.counter")
    async with pool(timing=Timing(first_backoff=0.01)) as worker:
        for place in range(3):
            assert await samples(worker, f"once:{tmp_path / str(place)}:crash") == 3
    assert [record.getMessage()[-6:] for record in caplog.records] == ["0.01 s"] * 3


async def test_a_process_killed_while_idle_is_started_again() -> None:
    async with pool() as worker:
        pid = await samples(worker, "pid")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: worker.stats()[0].pid != pid)
        assert await samples(worker, "pid") != pid


async def test_a_job_that_comes_in_the_moment_in_which_an_idle_process_is_killed_waits() -> None:
    async with pool() as worker:
        for _ in range(5):
            pid = await samples(worker, "pid")
            os.kill(pid, signal.SIGKILL)
            assert await samples(worker, "pid") != pid


async def test_a_process_that_is_silent_over_a_job_is_ended_and_another_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "starling.counter")
    async with pool(stall=0.5) as worker, asyncio.TaskGroup() as group:
        hung = group.create_task(samples(worker, f"once:{tmp_path / 'seen'}:hang"))
        other = group.create_task(samples(worker, "count:4"))
    assert (hung.result(), other.result()) == (3, 4)
    (record,) = caplog.records
    assert record.getMessage().startswith("it was silent for 0.5")
    assert record.getMessage().endswith("s with a job in hand (signal 9); starting it again in 0.02 s")


async def test_a_process_that_is_stopped_is_such_a_hang() -> None:
    async with pool(stall=0.5) as worker:
        pid = await samples(worker, "pid")
        os.kill(pid, signal.SIGSTOP)
        assert await samples(worker, "pid") != pid
        assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("spoke", [True, False], ids=["that spoke meanwhile", "that was frozen too"])
async def test_silence_while_the_service_itself_was_stopped_is_no_stall(tmp_path: Path, spoke: bool) -> None:
    gate = fifo(tmp_path)
    async with pool(stall=0.3) as worker, begun(worker, f"fifo:{gate}") as job:
        if spoke:
            gate.write_text("on")
        be_stopped(0.3 + HELD_UP_S + 0.2)
        if not spoke:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gate.write_text("on")
        assert isinstance((await job)[-1], Decoded)
        assert restarts(worker) == 0


async def test_a_hang_is_one_also_after_the_service_was_stopped(tmp_path: Path) -> None:
    async with pool(stall=0.3) as worker, begun(worker, f"once:{tmp_path / 'seen'}:hang") as job:
        be_stopped(0.3 + HELD_UP_S + 0.2)
        assert isinstance((await job)[-1], Decoded)
        assert restarts(worker) == 1


async def test_a_job_over_which_every_process_is_silent_is_given_up() -> None:
    async with pool(stall=0.2) as worker:
        hung = await failure(worker, "hang")
        assert (type(hung), hung.retry) == (WorkerCrashed, False)
        assert await samples(worker, "count:1") == 1


async def test_who_left_a_job_that_a_process_died_of_is_not_served_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with pool(f"admitted={log}", timing=Timing(first_backoff=0.2)) as worker:
        async with begun(worker, "crash"):
            await until(lambda: worker.stats()[0].state == "waiting")
        assert await samples(worker, "count:1") == 1
    assert log.read_text().splitlines() == ["crash", "count:1"]


async def test_silence_without_a_job_is_no_stall() -> None:
    async with pool(stall=0.5) as worker:
        pid = await samples(worker, "pid")
        await asyncio.sleep(0.7)
        assert await samples(worker, "pid") == pid


async def test_a_bug_in_one_job_s_admission_concerns_that_job_alone() -> None:
    async with pool() as worker, begun(worker, "hold") as other:
        assert isinstance(await failure(worker, "bug"), InternalError)
        assert restarts(worker) == 0
        assert not other.done()


async def test_a_hundred_jobs_over_restarts_get_their_own_answers_but_for_those_that_end_processes() -> None:
    sources = [f"count:{n}" if n % 20 else ("crash", "noise", "exit:3", "bug-step")[n // 20 % 4] for n in range(1, 101)]

    async def one(source: str) -> tuple[str, int | type[Failure]]:
        try:
            return source, await samples(worker, source)
        except WorkerCrashed as error:
            return source, type(error)

    async with pool("capacity=3", processes=2) as worker, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(source)) for source in sources]
    answers = [task.result() for task in tasks]
    counted = [(source, answer) for source, answer in answers if isinstance(answer, int)]
    assert all(source == f"count:{answer}" for source, answer in counted)
    assert len(counted) == 95


# --- cancelling ------------------------------------------------------------------------------------------------------


async def test_leaving_a_job_frees_its_room_in_the_same_process() -> None:
    async with pool("capacity=1") as worker:
        async with begun(worker, "hold"):
            pid = worker.stats()[0].pid
        assert await samples(worker, "pid") == pid


async def test_leaving_a_blocking_job_restarts_the_process_without_blame() -> None:
    async with pool("blocking", "capacity=1", timing=Timing(first_backoff=NEVER)) as worker:
        for _ in range(4):
            async with begun(worker, "hang"):
                pid = worker.stats()[0].pid
            assert await samples(worker, "pid") != pid
        assert restarts(worker) == 4


async def test_leaving_a_job_that_waits_disturbs_nobody(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool("blocking", "capacity=1") as worker, begun(worker, f"fifo:{gate}") as running:
        waiting = asyncio.create_task(run(worker, "crash"))
        await until_waiting(worker, 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        gate.write_bytes(b"")
        assert len(await running) == 1
        assert await samples(worker, "count:1") == 1
        assert restarts(worker) == 0


async def test_an_exit_as_if_cancelled_is_a_crash_when_nothing_is_being_cancelled(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "starling.counter")
    async with pool("capacity=1") as worker:
        async with begun(worker, "hold"):
            pass
        assert await samples(worker, f"once:{tmp_path / 'seen'}:exit:86") == 3
    assert [record.getMessage() for record in caplog.records] == [
        "it ended (exit status 86); starting it again in 0.02 s",
    ]


async def test_a_hang_shows_although_its_reader_has_left() -> None:
    timing = Timing(first_backoff=0.01, cancel_stall=0.2)
    async with pool("capacity=1", timing=timing) as worker:
        async with begun(worker, "hang"):
            pid = worker.stats()[0].pid
        assert await samples(worker, "pid") != pid


async def test_leaving_after_the_end_is_no_cancelling() -> None:
    async with pool("blocking", "capacity=1") as worker:
        for n in range(1, 20):
            async with aclosing(worker.run(Decode(source=f"count:{n}", target=""))) as events:
                async for event in events:
                    if isinstance(event, Decoded):
                        break
        assert restarts(worker) == 0


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_stopping_lets_running_jobs_end_and_refuses_the_rest(tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    async with pool("capacity=1") as worker, begun(worker, f"fifo:{gate}") as running, asyncio.TaskGroup() as group:
        waiting = group.create_task(failure(worker, "count:1"))
        await until_waiting(worker, 1)
        stopping = group.create_task(worker.stop(grace=NEVER))
        assert isinstance(await waiting, ShuttingDown)
        assert isinstance(await failure(worker, "count:2"), ShuttingDown)
        gate.write_bytes(b"")
        assert len(await running) == 1
        await stopping
        assert worker.stats() == [
            ProcessStats(name="counter", pid=None, state="stopped", rss_bytes=0, restarts=0, queued=0, running=0)
        ]


@pytest.mark.parametrize("source", ["hold", "hang"])
async def test_after_the_grace_a_running_job_fails_and_its_process_is_gone(source: str) -> None:
    async with pool() as worker, begun(worker, source) as running:
        pid = worker.stats()[0].pid
        assert pid is not None
        await worker.stop(grace=0.05)
        assert not psutil.pid_exists(pid)
        with pytest.raises(ShuttingDown):
            await running


async def test_a_process_that_ignores_the_end_is_killed() -> None:
    async with pool("deaf", timing=Timing(leave=0.1)) as worker:
        await until_all_ready(worker)
        pid = worker.stats()[0].pid
        assert pid is not None
        await worker.stop(grace=0)
        assert not psutil.pid_exists(pid)


async def test_a_pool_that_stops_while_a_process_dies_still_reaps_it() -> None:
    async with pool(timing=Timing(leave=2)) as worker:
        pid = await samples(worker, "pid")
        dying = asyncio.create_task(failure(worker, "hangup"))
        await until(lambda: worker.stats()[0].state == "waiting")
        assert psutil.pid_exists(pid)
        await worker.stop(grace=0)
        assert not psutil.pid_exists(pid)
        assert isinstance(await dying, ShuttingDown)


async def test_stopping_twice_at_once_ends_each_process_once() -> None:
    async with pool(processes=2) as worker, begun(worker, "hold") as running:
        await until_all_ready(worker)
        pids = [line.pid for line in worker.stats()]
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.stop(grace=0.1))
            group.create_task(worker.stop(grace=NEVER))
        assert not any(psutil.pid_exists(pid) for pid in pids if pid)
        with pytest.raises(ShuttingDown):
            await running


async def test_a_stopped_pool_can_be_started_again() -> None:
    async with pool() as worker:
        await samples(worker, "count:1")
        await worker.stop(grace=0)
        await worker.start()
        assert await samples(worker, "count:2") == 2


async def test_stopping_while_it_starts_waits_for_nothing(tmp_path: Path) -> None:
    async with pool(f"gate={fifo(tmp_path)}") as worker:
        async with asyncio.timeout(5):
            await worker.stop(grace=NEVER)
        assert worker.stats()[0].pid is None


@pytest.mark.skipif(sys.platform != "linux", reason="counts files in /proc")
async def test_no_file_is_left_open_and_workers_share_none() -> None:
    before = psutil.Process().num_fds()
    async with pool(processes=2) as worker:
        await samples(worker, "count:1")
        await until_all_ready(worker)
        opened = [files(line.pid) for line in worker.stats()]
    for names in opened:
        # Its input, its log (twice), and the pipe (a duplicate would hide the end of the stream).
        kinds = [name.partition(":")[0] for name in names]
        assert kinds == ["/dev/null", "socket", "socket", "socket"]
        assert len(set(names)) == 3
    assert not set(opened[0]) & set(opened[1]) - {"/dev/null"}
    assert psutil.Process().num_fds() == before


async def test_a_child_of_the_worker_does_not_hide_its_death() -> None:
    async with pool(timing=Timing(leave=0.1)) as worker:
        child = psutil.Process(await samples(worker, "spawn"))
        try:
            assert isinstance(await failure(worker, "crash"), WorkerCrashed)
            assert child.is_running()
            assert await samples(worker, "count:1") == 1
        finally:
            child.kill()
            child.wait(5)


SERVICE = """
import asyncio, sys
from protocol.jobs import Decode
from protocol.settings import MediaSettings
from service.worker import Pool

async def main():
    pool = Pool("counter", MediaSettings(), processes=1, queue_limit=1, start_wait=60, stall=lambda job: 60,
                command=sys.argv[2:])
    await pool.start()
    async for event in pool.run(Decode(source=sys.argv[1], target="")):
        print(pool.stats()[0].pid, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("source", ["hold", "hang"])
async def test_a_killed_service_takes_its_workers_with_it_at_once(source: str) -> None:
    root = str(Path(__file__).parents[2])
    service = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVICE,
        source,
        *COUNTER,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert service.stdout is not None
    worker = psutil.Process(int(await service.stdout.readline()))
    os.kill(service.pid, signal.SIGKILL)
    await service.wait()
    async with asyncio.timeout(5):
        await until(lambda: gone(worker))
    await service.stdout.read()


# --- its log ---------------------------------------------------------------------------------------------------------


async def test_what_a_worker_prints_is_logged_under_its_name_in_pieces_of_bounded_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "starling.counter")
    async with pool() as worker:
        assert await samples(worker, "chatter:3000000") == 0
        assert await samples(worker, "count:1") == 1
    pieces = [record.getMessage() for record in caplog.records if record.getMessage().startswith("xx")]
    assert sum(map(len, pieces)) == 3_000_000
    assert max(map(len, pieces)) == 4096


async def test_stats_name_each_process() -> None:
    async with pool(processes=2) as worker:
        await samples(worker, "count:1")
        stats = worker.stats()
        assert [line.name for line in stats] == ["counter-1", "counter-2"]
        ready = next(line for line in stats if line.state == "ready")
        assert 5 << 20 < ready.rss_bytes < 500 << 20


async def test_what_a_process_said_is_told_to_its_successor() -> None:
    def learn(settings: Settings, event: Event) -> Settings:
        assert isinstance(settings, MediaSettings)
        counted = isinstance(event, Decoded) and event.samples == 7
        return msgspec.structs.replace(settings, max_audio_seconds=7.0) if counted else settings

    async with pool(learn=learn) as worker:
        assert await samples(worker, "told") == MediaSettings().max_audio_seconds
        await run(worker, "count:7")
        await failure(worker, "crash")
        assert await samples(worker, "told") == 7
