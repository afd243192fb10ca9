"""How a session waits for workers that come and go."""

from __future__ import annotations

import pytest

from protocol.errors import DiskFull, Failure, InternalError, InvalidValue, QueueFull, WorkerCrashed
from service.dictation import turns
from service.dictation.turns import Patience
from tests.fakes import FakeWorker

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(turns, "LONGEST_DELAY", 0.004)


class Attempts:
    """Fails as told, then succeeds."""

    def __init__(self, *failures: Failure) -> None:
        self.failures = list(failures)
        self.made = 0

    async def __call__(self) -> str:
        self.made += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"


@pytest.mark.parametrize("failure", [QueueFull("full"), WorkerCrashed("gone"), DiskFull("full"), InternalError("bug")])
async def test_what_passes_is_tried_again(failure: Failure) -> None:
    attempts = Attempts(failure, failure)
    assert await Patience(lambda: None).insist(attempts) == "done"
    assert attempts.made == 3


async def test_a_refusal_is_raised_at_once() -> None:
    attempts = Attempts(InvalidValue("no"))
    with pytest.raises(InvalidValue):
        await Patience(lambda: None).insist(attempts)
    assert attempts.made == 1


@pytest.mark.parametrize("failure", [WorkerCrashed("gone"), InternalError("bug")])
async def test_a_job_that_crashes_its_worker_every_time_is_given_up(failure: Failure) -> None:
    attempts = Attempts(*[failure] * 100)
    with pytest.raises(type(failure)):
        await Patience(lambda: None).insist(attempts)
    assert attempts.made == turns.POISON


async def test_a_broken_pool_is_waited_for_however_long_it_takes_and_said_to_be_in_the_way() -> None:
    worker, attempts, seen = FakeWorker("whisper", {}), Attempts(*[WorkerCrashed("broken")] * 20), list[str]()
    worker.failure = WorkerCrashed("broken")
    patience = Patience(lambda: seen.append(patience.stuck.message if patience.stuck else "goes on"))
    assert await patience.insist(attempts, worker) == "done"
    assert attempts.made == 21
    assert (set(seen), seen[-1], patience.stuck) == ({"broken", "goes on"}, "goes on", None)
