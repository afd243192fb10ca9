"""The loop every worker process runs over its engine. Knows frames and queues; knows no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from protocol.events import Event, Ready
from protocol.jobs import Job

Emit = Callable[[Event], None]
"""Answers one job; the loop knows which. After a terminal event further calls are dropped."""

H = TypeVar("H")
"""Whatever the engine calls a job that it has admitted."""


class Engine(Protocol[H]):
    """What a model or codec looks like to the loop. Only the main thread calls it."""

    blocking: bool
    """One `step` may run a whole job. Cancelling that job then ends the process (wire.CANCELLED_EXIT)."""

    @property
    def ready(self) -> Ready:
        """What the service is told when loading is over."""

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""

    def admit(self, job: Job, emit: Emit) -> H:
        """Take a job. Raises Failure to refuse it."""

    def cancel(self, handle: H) -> None:
        """Forget a job. Idempotent; after its end too."""

    def step(self) -> None:
        """Do a little work for the admitted jobs and emit what came of it.

        Raises nothing that concerns one job alone: that is emitted as Failed.
        """
