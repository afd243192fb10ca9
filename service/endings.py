"""How a worker process ended, and what those who waited for it are told. Knows no process."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import Failure, WorkerCrashed


@dataclass(frozen=True)
class Refused:
    """It said why it cannot serve."""

    failure: Failure


@dataclass(frozen=True)
class Crashed:
    why: str
    healthy_s: float | None
    """How long it was ready; None when it never was."""
    outside: bool = False
    """It was ended from outside."""


@dataclass(frozen=True)
class Cancelled:
    """It ended itself, because that is how its engine cancels."""


@dataclass(frozen=True)
class Idle:
    """Nobody needed it any more, for so many seconds; None: it was told to go."""

    quiet_s: float | None


def broken(name: str, times: int, why: str) -> WorkerCrashed:
    """What jobs hear of a worker that is not started again."""
    return WorkerCrashed(
        f"the {name} worker failed to start {times} times in a row ({why}); the server's log has the details",
        retry=False,
    )


def poison(times: int) -> WorkerCrashed:
    """What the job hears that ends whatever works on it."""
    return WorkerCrashed(f"the worker crashed {times} times in a row over this request: it is given up", retry=False)


def worded(status: int | None) -> str:
    """An exit status as people read it."""
    if status is not None and status < 0:
        return f"signal {-status}"
    return f"exit status {status}"
