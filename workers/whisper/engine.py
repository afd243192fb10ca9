"""Many transcripts over one model: each step answers a few needs of all jobs, by rank, and among equals in turn.

Knows needs, rows and fairness; Whisper's rules are in `transcript.py`, the tensors in the model.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from protocol.errors import InternalError, WrongModelKind
from protocol.events import Loading, Ready
from protocol.jobs import Guess, Heard, Job, Transcribe
from protocol.settings import WhisperSettings
from workers.backend import log_loaded, start
from workers.loop import Emit, is_shortage
from workers.whisper.decoding.fallback import Kit
from workers.whisper.hearing import Phase
from workers.whisper.needs import Align, Ask, Encode, Need, Pause, Prefill, Step
from workers.whisper.refusal import refuse
from workers.whisper.tracks import Rank, Running, Track, running

if TYPE_CHECKING:
    from workers.whisper.model import WhisperModel

N = TypeVar("N", bound=Need)

CAPACITY = 32
"""Jobs at once. Each costs little until it has a window in memory, and those are `Shares.windows`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shares:
    """How much one step does at most, so that nobody waits long for it."""

    windows: int = 6
    """Encoded windows in memory at once; urgent jobs and guesses may double it. One takes 36 MB with base in float32,
    and with six of them the process stays below 750 MB."""
    encodes: int = 2
    """Windows encoded in a step: half a second each with base on two cores."""
    prefills: int = 4
    aligns: int = 2
    rows: int = 64
    """Rows in one decoder step; a group (a window's beams or samples) is never split."""
    forbearance: int = 16
    """Steps for which a rank's new windows wait while a higher one is at work; then they get a turn."""


@dataclass
class Counts:
    """For `stats` and the tests: what is held now, and what was done since the start."""

    jobs: int = 0
    rows: int = 0
    """Fed in the last step."""
    windows: int = 0
    waiting: int = 0
    """Tracks that wait for an answer about speech."""
    steps: int = 0
    encoded: int = 0
    fed: int = 0
    """Rows fed since the start: tokens decoded."""


class WhisperEngine:
    """The loop's Engine over windows of all jobs. Only the main thread calls it."""

    blocking = False

    def __init__(self, model: WhisperModel[Any, Any], ready: Ready, shares: Shares | None = None) -> None:
        self._model = model
        self._ready = ready
        self._shares = shares or Shares()
        self._kit = Kit(model.dims)
        self._jobs: list[Running] = []
        self._counts = Counts()
        self._held_back: Counter[Rank] = Counter()

    @property
    def ready(self) -> Ready:
        return self._ready

    @property
    def busy(self) -> bool:
        """False also when all that is left waits for an answer about speech."""
        return any(not _is_waiting(track) for track in self._live()) or any(job.over for job in self._jobs)

    def admit(self, job: Job, emit: Emit) -> Running:
        """Take a job. Raises Failure for what this model cannot do."""
        if not isinstance(job, Transcribe | Guess):
            raise WrongModelKind("this worker transcribes speech and does nothing else")
        assert self._ready.model is not None
        refuse(job, self._ready.model)
        admitted = running(self._kit, job, emit)
        self._jobs.append(admitted)
        return admitted

    def cancel(self, handle: Running) -> None:
        handle.close()
        self._jobs = [job for job in self._jobs if job is not handle]

    def answer(self, handle: Running, heard: Heard) -> None:
        handle.answer(heard)

    def stats(self) -> Counts:
        live = self._live()
        self._counts.jobs = len(self._jobs)
        self._counts.windows = sum(track.holds_window for track in live)
        self._counts.waiting = sum(map(_is_waiting, live))
        self._counts.rows = sum(len(track.need.tokens) for track in live if isinstance(track.need, Step))
        return self._counts

    def step(self) -> None:
        self._counts.steps += 1
        self._resume()
        self._encode()
        self._prefill()
        self._decode()
        self._align()
        self._part()

    def _live(self) -> list[Track]:
        """By rank, and among equals the one served longest ago."""
        tracks = [track for job in self._jobs for track in job.live]
        return sorted(tracks, key=lambda track: (track.job.rank, track.served))

    def _needing(self, kind: type[N]) -> list[tuple[Track, N]]:
        return [(track, track.need) for track in self._live() if isinstance(track.need, kind)]

    # The phases of a step.

    def _resume(self) -> None:
        """Those that paused, and those whose question is answered."""
        for track, _ in self._needing(Pause)[: self._shares.windows]:
            self._go_on(track, None)
        for track, _ in self._needing(Ask):
            if (heard := track.heard) is not None:
                track.heard = None
                self._go_on(track, heard)

    def _encode(self) -> None:
        chosen = self._next_windows(self._needing(Encode))
        if not chosen:
            return
        needs = [need for _, need in chosen]
        with _watch(chosen, "encode"):
            encoded = self._model.encode([need.mel for need in needs], [need.context for need in needs])
        self._counts.encoded += len(chosen)
        for (track, _), window in zip(chosen, encoded, strict=True):
            self._go_on(track, window)

    def _next_windows(self, waiting: Sequence[tuple[Track, Encode]]) -> list[tuple[Track, Encode]]:
        """By rank, and of equals the job with the fewest windows in memory, that none takes all places."""
        held = sum(track.holds_window for track in self._live())
        chosen: list[tuple[Track, Encode]] = []
        for rank in Rank:
            mine = [item for item in waiting if item[0].job.rank is rank]
            if self._yields(rank, waiting=bool(mine)):
                continue
            places = self._shares.windows * (1 if rank is Rank.FILE else 2) - held
            while mine and len(chosen) < min(self._shares.encodes, places):
                fairest = min(mine, key=lambda item: self._windows_of(item[0].job, chosen))
                mine.remove(fairest)
                chosen.append(fairest)
        return chosen

    def _yields(self, rank: Rank, *, waiting: bool) -> bool:
        """Whether this rank's windows wait while a higher one is at work (a window stalls its tokens); not for ever."""
        if any(track.job.rank < rank and not _is_waiting(track) for track in self._live()):
            self._held_back[rank] += waiting
            if self._held_back[rank] <= self._shares.forbearance:
                return True
        self._held_back[rank] = 0
        return False

    @staticmethod
    def _windows_of(job: Running, chosen: Sequence[tuple[Track, Encode]]) -> int:
        return sum(track.holds_window for track in job.tracks) + sum(track.job is job for track, _ in chosen)

    def _prefill(self) -> None:
        chosen = self._needing(Prefill)[: self._shares.prefills]
        if not chosen:
            return
        with _watch(chosen, "decode"):
            answers = self._model.prefill_many([(need.encoded, need.tokens, need.at) for _, need in chosen])
        for (track, _), answer in zip(chosen, answers, strict=True):
            self._go_on(track, answer)

    def _decode(self) -> None:
        """One token for every row that has room in the step."""
        chosen: list[tuple[Track, Step]] = []
        rows = 0
        for track, need in self._needing(Step):
            if not chosen or rows + len(need.tokens) <= self._shares.rows:
                chosen.append((track, need))
                rows += len(need.tokens)
        if not chosen:
            return
        with _watch(chosen, "decode"):
            logits = self._model.step([need.rows for _, need in chosen], [need.tokens for _, need in chosen])
        self._counts.fed += rows
        for (track, _), line in zip(chosen, logits, strict=True):
            self._go_on(track, line)

    def _align(self) -> None:
        for track, need in self._needing(Align)[: self._shares.aligns]:
            with track.job.spent.watch("align"):
                answer = self._model.align(need.encoded, need.tokens)
            self._go_on(track, answer)

    def _part(self) -> None:
        """Jobs that are over get their last word and leave."""
        for job in [job for job in self._jobs if job.over]:
            self._jobs.remove(job)
            job.finish()

    # One job's part of it.

    def _go_on(self, track: Track, answer: Any) -> None:
        """A job whose own rules fail, fails alone."""
        track.served = self._counts.steps
        try:
            track.advance(answer)
            track.job.release()
        except Exception as error:
            if is_shortage(error):
                raise
            traceback.print_exc()
            self.cancel(track.job)
            track.job.fail(InternalError("transcribing this recording met an error; the worker's log has the details"))


@contextmanager
def _watch(chosen: Iterable[tuple[Track, Any]], phase: Phase) -> Iterator[None]:
    """Adds the seconds inside it to a phase of each of the jobs."""
    begun = time.perf_counter()
    yield
    passed = time.perf_counter() - begun
    for job in {id(track.job): track.job for track, _ in chosen}.values():
        job.spent.add(phase, passed)


def _is_waiting(track: Track) -> bool:
    return isinstance(track.need, Ask) and track.heard is None


def build(settings: WhisperSettings, report: Callable[[Loading], None]) -> WhisperEngine:
    """Load the BLAS, MLX and the model, in this order and this thread. Raises ModelNotConfigured."""
    backend = start(settings.data_dir, report, few=False)
    import mlx.core as mx

    from workers.whisper.load import load
    from workers.whisper.model import choose

    loaded = load(
        settings.model,
        data_dir=settings.data_dir,
        offline=settings.offline,
        report=report,
        dtype=mx.float32 if backend.name == "cpu" else mx.float16,
    )
    model = choose(loaded.whisper, settings.threads or None, folder=Path(settings.data_dir) / "blas")
    log_loaded(loaded.model, backend)
    return WhisperEngine(model, Ready(capacity=CAPACITY, backend=backend, model=loaded.model))
