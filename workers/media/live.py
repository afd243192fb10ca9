"""Follows a recording that grows: what is new becomes 16 kHz mono s16le, and Silero listens to it.

Knows runs, what is kept open between two jobs, and how much one job does; the samples are decode.py's, bit for bit.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Generator
from contextlib import ExitStack

import numpy as np

from protocol.errors import InternalError, RequestCancelled
from protocol.events import Followed, Progress
from protocol.jobs import Follow, Pcm, Run
from protocol.settings import SAMPLE_RATE
from workers.media.convert import to_s16le
from workers.media.decode import storage_failure
from workers.media.readers import Floats
from workers.media.runs import Playback
from workers.media.speech import SAMPLE_BYTES, WINDOW, Memory, Silero, windows

JOB_WINDOWS = 30 * SAMPLE_RATE // WINDOW
"""Windows that one job converts and listens to, at most about: 30 s."""
JOB_SAMPLES = JOB_WINDOWS * WINDOW
STEP_S = 0.02
"""Seconds after which a step ends: dozens of sessions take turns."""
LISTEN_WINDOWS = 16
"""Windows between two looks at the clock, 2 ms of work."""
MAX_KEPT = 64
"""Runs whose converters are kept between two jobs, of about 0.5 MB each."""

Steps = Generator[Progress, None, Followed]


class Kept:
    """The converters of runs that go on, for the next job. Nothing in it is needed: a replay gives the same samples."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._playbacks: OrderedDict[tuple[str, int], tuple[int, Playback]] = OrderedDict()

    def put(self, pcm: str, samples: int, playback: Playback) -> None:
        """`samples`: those that `pcm` has after it; the next job names them. The one unused longest has to go."""
        self._playbacks[pcm, playback.base] = samples, playback
        if len(self._playbacks) > self._most:
            self._playbacks.popitem(last=False)[1][1].close()

    def take(self, pcm: str, base: int, samples: int, run: Run) -> Playback:
        """The run's playback as it was put, else one from its start. It is the caller's now."""
        had, playback = self._playbacks.pop((pcm, base), (0, None))
        if playback is not None:
            if had == samples and playback.plays(run):
                return playback
            playback.close()
        return Playback(run, base, samples)

    def clear(self) -> None:
        for _, playback in self._playbacks.values():
            playback.close()
        self._playbacks.clear()


def follow_steps(job: Follow, silero: Silero, kept: Kept, max_decode_seconds: float, step_s: float = STEP_S) -> Steps:
    """Convert and listen; between two steps of about `step_s` seconds it may be closed to cancel.

    Raises UndecodableAudio and RequestTimeout for an encoded file, DiskFull, InternalError, and RequestCancelled where
    the files are gone, which happens when a session is removed. Otherwise the job may always be done
    again.
    """
    try:
        return (yield from _Following(job, silero, kept, max_decode_seconds, step_s).steps())
    except MemoryError as error:
        kept.clear()
        raise InternalError("there was no memory left to follow the recording") from error
    except FileNotFoundError as error:
        raise RequestCancelled("the recording was removed while it was converted") from error
    except OSError as error:
        raise storage_failure(error) from error


class _Following:
    """One job under way. Owns `pcm` behind `samples`."""

    def __init__(self, job: Follow, silero: Silero, kept: Kept, max_decode_seconds: float, step_s: float) -> None:
        self._job = job
        self._silero = silero
        self._kept = kept
        self._max_decode_seconds = max_decode_seconds
        self._step_s = step_s
        self._began = time.monotonic()
        self._memory = Memory(job.memory)
        self._samples = job.samples
        self._base = job.base
        self._runs = 0
        self._enough = False
        """The job has converted its share before it came to the end."""

    def steps(self) -> Steps:
        pcm = os.open(self._job.pcm, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            size, there = os.fstat(pcm).st_size, self._samples * SAMPLE_BYTES
            if size < there:  # A hole would read as silence.
                raise InternalError("the decoded audio is shorter than announced")
            if size > there:
                os.ftruncate(pcm, there)
            for number, run in enumerate(self._job.runs):
                if self._enough:
                    break
                last = number == len(self._job.runs) - 1
                yield from self._convert(run, pcm, complete=not last or self._job.ended or run.raw is None)
        finally:
            os.close(pcm)
        return (yield from self._listen())

    def _convert(self, run: Run, pcm: int, complete: bool) -> Generator[Progress]:
        """Go on with one run, to its end or until it is enough."""
        playback = self._kept.take(self._job.pcm, self._base, self._samples, run)
        with ExitStack() as undo:
            undo.callback(playback.close)
            while not self._enough and (piece := playback.advance(run, self._max_decode_seconds)) is not None:
                self._write(pcm, playback, piece)
                self._enough = self._samples - self._job.samples >= JOB_SAMPLES
                if self._is_step_over():
                    yield Progress(playback.position / SAMPLE_RATE, 0.0)
            if complete and not self._enough:
                self._write(pcm, playback, playback.flush())
                self._base = self._samples = playback.position
                self._runs += 1
            else:
                self._kept.put(self._job.pcm, self._samples, playback)
                undo.pop_all()

    def _write(self, pcm: int, playback: Playback, piece: Floats) -> None:
        """Store what `piece`, which ends at the playback's position, has beyond those samples that are there."""
        new = playback.position - self._samples
        if new <= 0:
            return
        rest = memoryview(to_s16le(piece[-new:]))
        at = self._samples * SAMPLE_BYTES
        while rest:
            written = os.pwrite(pcm, rest, at)
            rest, at = rest[written:], at + written
        self._samples = playback.position

    def _listen(self) -> Steps:
        """To each whole window; at the end of everything to the last one too, filled up with silence."""
        all_of_it = self._job.ended and not self._enough
        there = -(-self._samples // WINDOW) if all_of_it else self._samples // WINDOW
        first = self._job.heard
        stop = min(there, first + JOB_WINDOWS)
        audio = Pcm(self._job.pcm, 0, self._samples)
        probabilities: list[float] = []
        levels: list[float] = []
        for at in range(first, stop, LISTEN_WINDOWS):
            heard = windows(audio, at * WINDOW, min(LISTEN_WINDOWS, stop - at))
            probabilities += self._silero.listen(heard, self._memory)
            levels += np.sqrt(np.mean(np.square(heard, dtype=np.float64), axis=1)).tolist()
            if self._is_step_over():
                yield Progress((at + len(heard)) * WINDOW / SAMPLE_RATE, 0.0)
        return Followed(
            samples=self._samples,
            runs=self._runs,
            base=self._base,
            probabilities=tuple(probabilities),
            levels=tuple(levels),
            memory=self._memory.pack(),
            more=self._enough or stop < there,
        )

    def _is_step_over(self) -> bool:
        """Whether to give way now; the caller does, and the next step begins."""
        now = time.monotonic()
        if now - self._began < self._step_s:
            return False
        self._began = now
        return True
