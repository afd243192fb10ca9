"""mlx-whisper's own `transcribe`, one job at a time: the reference that the rest is measured against.

Knows jobs, events and how to call mlx-whisper; decides nothing that mlx-whisper decides.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EmptyAudio, Failure, InternalError, WrongModelKind
from protocol.events import Loading, Ready
from protocol.jobs import Heard, Job, Pcm, Transcribe
from protocol.settings import OracleSettings
from workers.backend import describe, log_loaded, prepare_blas
from workers.loop import Emit, failed
from workers.whisper.recording import Recording, Spool
from workers.whisper.refusal import refuse

if TYPE_CHECKING:  # mlx must not be imported before the BLAS is there
    from workers.oracle.transcription import Transcriber

SAMPLE_BYTES = 2
CACHE_BYTES = 256 << 20
"""Buffers that MLX may keep for reuse while a job runs; they go when it ends."""

_log = logging.getLogger(__name__)


class Running:
    """One admitted job."""

    def __init__(self, job: Transcribe, emit: Emit) -> None:
        self.job = job
        self.emit = emit


class OracleEngine:
    """The loop's engine over one loaded model. One `step` is one whole job."""

    blocking = True

    def __init__(self, ready: Ready, transcriber: Transcriber) -> None:
        self._ready = ready
        self._transcriber = transcriber
        self._waiting: deque[Running] = deque()

    @property
    def ready(self) -> Ready:
        return self._ready

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def admit(self, job: Job, emit: Emit) -> Running:
        """Take a job. Raises Failure for what this model cannot do and for a span without samples."""
        if not isinstance(job, Transcribe):
            raise WrongModelKind("this worker transcribes speech and does nothing else")
        if job.audio.stop <= job.audio.start:
            raise EmptyAudio("the audio has no samples", param="file")
        assert self._ready.model is not None
        refuse(job, self._ready.model)
        running = Running(job, emit)
        self._waiting.append(running)
        return running

    def cancel(self, handle: Running) -> None:
        """Forget a job that still waits; one that runs ends with the process (see `blocking`)."""
        if handle in self._waiting:
            self._waiting.remove(handle)

    def answer(self, handle: Running, heard: Heard) -> None:
        """mlx-whisper's own rule about silence asks nobody."""

    def step(self) -> None:
        """Run the oldest job to its end and emit its events."""
        if not self._waiting:
            return
        running = self._waiting.popleft()
        job = running.job
        try:
            samples = read_samples(job.audio)
        except Failure as failure:
            running.emit(failed(failure))
            return
        if job.spans is None:
            self._transcriber.run(samples, job, running.emit)
            return
        # As our own engine does it: what is to be heard joined, and its times mapped back.
        spans = [(span.start, span.stop) for span in job.spans]
        joined = Recording(Spool(job.audio.path), job.audio.start, job.audio.stop, spans)
        heard = [samples[:0], *(samples[start:stop] for start, stop in spans)]
        self._transcriber.run(np.concatenate(heard), job, running.emit, joined)


def build(settings: OracleSettings, report: Callable[[Loading], None]) -> OracleEngine:
    """Load the BLAS, MLX and the model, in this order and this thread. Raises ModelNotConfigured."""
    report(Loading("preparing BLAS"))
    library = prepare_blas(settings.data_dir, settings.threads)
    report(Loading("importing MLX and mlx-whisper"))
    import mlx.core as mx

    from workers.oracle.transcription import Transcriber
    from workers.whisper.load import load

    backend = describe(library)
    mx.set_cache_limit(CACHE_BYTES)
    loaded = load(
        settings.model,
        data_dir=settings.data_dir,
        offline=settings.offline,
        report=report,
        dtype=mx.float32 if backend.name == "cpu" else mx.float16,
    )
    log_loaded(loaded.model, backend)
    return OracleEngine(Ready(capacity=1, backend=backend, model=loaded.model), Transcriber(loaded))


def read_samples(audio: Pcm) -> NDArray[np.float32]:
    """The span's samples in -1..1. Raises InternalError when the spool file does not hold it."""
    count = audio.stop - audio.start
    try:
        samples: NDArray[Any] = np.fromfile(audio.path, "<i2", count, offset=audio.start * SAMPLE_BYTES)
    except OSError as error:
        raise InternalError("the decoded audio could not be read") from error
    if len(samples) < count:
        raise InternalError("the decoded audio is shorter than announced")
    return samples.astype(np.float32) / np.float32(32768)
