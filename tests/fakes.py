"""A worker pool without processes: scripts of events by job type. Knows service.worker.Worker; knows no pipe.

FakeWorker("media", {Decode: [Progress(done=1, total=2), Decoded(...)]})
FakeWorker("speech", {Transcribe: [EmptyAudio("there is nothing in it")]})        refuses
FakeWorker("speech", {Transcribe: [Segment(...), gate, Transcribed(...)]})        waits for an asyncio.Event
FakeWorker("media", {Decode: lambda job: write_pcm(job.target) or [Decoded(...)]})   looks at the job
FakeWorker("speech", {Transcribe: [Doubt(...), Transcribed(...)]})                asks; `heard` has the answers
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from protocol.errors import BY_KIND, Failure
from protocol.events import TERMINAL, Doubt, Event, Failed, Loading, Ready
from protocol.jobs import Heard, Job
from service.worker import ProcessStats, State

Step = Event | Failure | asyncio.Event
"""An event is yielded, a failure raised; an asyncio.Event is waited for."""

Script = Sequence[Step] | Callable[[Any], Sequence[Step]]


class FakeWorker:
    """Satisfies service.worker.Worker. `jobs` holds what was asked, `cancelled` what was left before its end.

    `heard` holds the answers to its doubts; None for one that nobody answered.
    """

    def __init__(
        self,
        name: str,
        script: Mapping[type[Job], Script],
        *,
        ready: Ready | None = None,
        loading: Loading | None = None,
        failure: Failure | None = None,
    ) -> None:
        self.name = name
        self.ready = ready
        self.loading = loading
        self.failure = failure
        self.jobs: list[Job] = []
        self.cancelled: list[Job] = []
        self.heard: list[Heard | None] = []
        self.running = 0
        self.state: State = "ready" if ready else "broken" if failure else "starting"
        self.touched = 0
        """How often someone was about to need it."""
        self.used_at = 0.0
        self.rss_bytes = 0
        self._script = script

    @property
    def able(self) -> bool:
        return self.state in ("ready", "idle")

    @property
    def busy(self) -> int:
        return self.running

    async def unload(self) -> str | None:
        if self.running:
            return "a request is under way; try again later"
        if self.state != "ready":
            return "it is not loaded"
        self.state, self.rss_bytes = "idle", 0
        return None

    def touch(self, *, wake: bool = False) -> None:
        self.touched += 1

    async def run(self, job: Job) -> AsyncGenerator[Event, Heard | None]:
        self.jobs.append(job)
        if self.failure is not None:
            raise self.failure
        self.running += 1
        ended = False
        try:
            script = self._script[type(job)]
            for step in script(job) if callable(script) else script:
                if isinstance(step, asyncio.Event):
                    await step.wait()
                    continue
                ended = isinstance(step, (Failure, *TERMINAL))
                if isinstance(step, Failed):
                    raise BY_KIND[step.kind](step.message, param=step.param, retry=step.retry)
                if isinstance(step, Failure):
                    raise step
                heard = yield step
                if isinstance(step, Doubt):
                    self.heard.append(heard)
            assert ended, f"the script for {type(job).__name__} has no terminal event"
        finally:
            self.running -= 1
            if not ended:
                self.cancelled.append(job)

    def stats(self) -> list[ProcessStats]:
        return [
            ProcessStats(
                name=self.name,
                pid=None,
                state=self.state,
                rss_bytes=self.rss_bytes,
                restarts=0,
                queued=0,
                running=self.running,
            )
        ]

    async def start(self) -> None:
        """Nothing to spawn."""

    async def stop(self, grace: float) -> None:
        self.state = "stopped"
