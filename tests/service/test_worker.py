"""A pool of real processes (tests/counter.py) that crash, hang, babble and count."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

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
from protocol.settings import MediaSettings
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


async def test_a_crash_during_a_doubt_ends_its_job_alone(tmp_path: Path) -> None:
    async with pool("capacity=2") as worker, aclosing(worker.run(Decode(source="doubt:2", target=""))) as events:
        await anext(events)
        assert isinstance(await failure(worker, "crash"), WorkerCrashed)
        with pytest.raises(WorkerCrashed):
            await events.asend(Heard(speech=True))
        assert await samples(worker, "count:1") == 1


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
    async with pool(timing=Timing(idle_end=NEVER)) as worker:
        await asyncio.sleep(0.1)
        assert (worker.stats()[0].state, worker.stats()[0].pid, worker.failure) == ("idle", None, None)
        assert await samples(worker, "count:3") == 3
        assert worker.stats()[0].state == "ready"


async def test_on_demand_a_process_ends_when_nobody_has_needed_it_for_long(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with pool(f"log={log}", timing=Timing(idle_end=0.2)) as worker:
        for _ in range(2):
            pid = await samples(worker, "pid")
            await until(lambda: worker.stats()[0].state == "idle")
            assert not psutil.pid_exists(pid)
        assert restarts(worker) == 0
    assert len(log.read_text().splitlines()) == 2


async def test_on_demand_a_job_in_hand_keeps_its_process() -> None:
    async with pool(timing=Timing(idle_end=0.1)) as worker, begun(worker, "hold"):
        pid = worker.stats()[0].pid
        await asyncio.sleep(0.4)
        assert await samples(worker, "pid") == pid


async def test_on_demand_a_job_that_comes_as_its_process_ends_gets_the_next(tmp_path: Path) -> None:
    """Jobs at all moments around the end; each is answered."""
    async with pool(timing=Timing(idle_end=0.05)) as worker:
        for delay in range(20):
            assert await samples(worker, "count:2") == 2
            await asyncio.sleep(0.04 + delay * 0.001)
        assert worker.failure is None


async def test_on_demand_a_cancelled_blocking_job_starts_nothing_by_itself(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with pool("blocking", "capacity=1", f"log={log}", timing=Timing(idle_end=NEVER)) as worker:
        async with begun(worker, "hang"):
            pass
        await until(lambda: worker.stats()[0].state == "idle")
        assert len(log.read_text().splitlines()) == 1
        assert await samples(worker, "count:1") == 1


async def test_on_demand_what_cannot_start_says_so() -> None:
    async with pool("refuse", timing=Timing(idle_end=NEVER)) as worker:
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


@pytest.mark.parametrize("source", ["crash", "exit:3", "exit:0", "exit:86", "noise", "hangup"])
async def test_a_crash_fails_what_ran_and_keeps_what_waits(source: str) -> None:
    async with pool("capacity=1") as worker, asyncio.TaskGroup() as group:
        crashed = group.create_task(failure(worker, source))
        waiting = group.create_task(samples(worker, "count:3"))
        assert isinstance(await crashed, WorkerCrashed)
        assert await waiting == 3
        assert (restarts(worker), worker.stats()[0].state) == (1, "ready")


async def test_a_crash_of_one_process_leaves_the_other_alone() -> None:
    async with pool("capacity=1", processes=2) as worker, begun(worker, "hold") as held:
        assert isinstance(await failure(worker, "crash"), WorkerCrashed)
        assert await samples(worker, "count:1") == 1
        assert not held.done()


async def test_backoff_doubles_up_to_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "starling.counter")
    async with pool(timing=Timing(first_backoff=0.01, longest_backoff=0.03)) as worker:
        for _ in range(4):
            await failure(worker, "exit:3")
        await samples(worker, "count:1")
    assert [record.getMessage() for record in caplog.records] == [
        f"it ended (exit status 3); starting it again in {delay} s" for delay in ("0.01", "0.02", "0.03", "0.03")
    ]


async def test_a_healthy_time_forgives_earlier_crashes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "starling.counter")
    async with pool(timing=Timing(first_backoff=0.01, healthy_after=0.0)) as worker:
        for _ in range(3):
            await failure(worker, "exit:3")
        await samples(worker, "count:1")
    assert [record.getMessage()[-6:] for record in caplog.records] == ["0.01 s"] * 3


async def test_a_process_killed_while_idle_is_started_again() -> None:
    async with pool() as worker:
        pid = await samples(worker, "pid")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: worker.stats()[0].pid != pid)
        assert await samples(worker, "pid") != pid


async def test_a_job_over_which_a_process_is_silent_is_ended_with_it() -> None:
    async with pool(stall=0.5) as worker, begun(worker, "hang") as hung:
        pid = worker.stats()[0].pid
        with pytest.raises(WorkerCrashed, match=r"the worker said nothing for 0\.5\d* s and was ended") as caught:
            await hung
        assert caught.value.retry is False
        assert await samples(worker, "pid") != pid


async def test_of_several_jobs_over_which_a_process_is_silent_each_may_be_tried_again() -> None:
    async with pool(stall=0.5) as worker, begun(worker, "hold") as other, begun(worker, "hang") as hung:
        for job in (other, hung):
            with pytest.raises(WorkerCrashed, match="and was ended") as caught:
                await job
            assert caught.value.retry is None


async def test_a_crash_is_called_one() -> None:
    async with pool() as worker:
        crashed = await failure(worker, "crash")
        assert (crashed.message, crashed.retry) == ("the worker crashed while it worked on this request", None)


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


async def test_a_bug_in_a_step_fails_its_jobs_and_no_job_is_given_to_the_dying_process() -> None:
    async with pool("capacity=2") as worker, begun(worker, "hold") as other:
        assert isinstance(await failure(worker, "bug-step"), InternalError)
        assert await samples(worker, "count:2") == 2
        assert restarts(worker) == 1
        with pytest.raises(InternalError):
            await other


async def test_a_hundred_jobs_over_restarts_get_their_own_answers_or_a_clean_failure() -> None:
    sources = [f"count:{n}" if n % 20 else ("crash", "noise", "exit:3", "bug-step")[n // 20 % 4] for n in range(1, 101)]

    async def one(source: str) -> tuple[str, int | type[Failure]]:
        try:
            return source, await samples(worker, source)
        except (WorkerCrashed, InternalError) as error:
            return source, type(error)

    async with pool("capacity=3", processes=2) as worker, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(source)) for source in sources]
    answers = [task.result() for task in tasks]
    counted = [(source, answer) for source, answer in answers if isinstance(answer, int)]
    assert all(source == f"count:{answer}" for source, answer in counted)
    # Five jobs end their process; each takes at most two others with it.
    assert len(counted) >= 85


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
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "starling.counter")
    async with pool("capacity=1") as worker:
        assert isinstance(await failure(worker, "exit:86"), WorkerCrashed)
        async with begun(worker, "hold"):
            pass
        assert isinstance(await failure(worker, "exit:86"), WorkerCrashed)
        await samples(worker, "count:1")
    assert [record.getMessage() for record in caplog.records] == [
        "it ended (exit status 86); starting it again in 0.02 s",
        "it ended (exit status 86); starting it again in 0.04 s",
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
    async with pool(timing=Timing(leave=0.3)) as worker:
        pid = await samples(worker, "pid")
        assert isinstance(await failure(worker, "hangup"), WorkerCrashed)
        assert psutil.pid_exists(pid)
        await worker.stop(grace=0)
        assert not psutil.pid_exists(pid)


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
async def test_a_killed_service_takes_its_workers_with_it_within_a_second(source: str) -> None:
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
    async with asyncio.timeout(1):
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
