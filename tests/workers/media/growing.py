"""A recording that grows, as the service keeps it: a journal with headers, encoded files beside it, and its PCM."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from protocol.events import Followed, Progress
from protocol.jobs import Follow, Raw, Run
from workers.media.live import Kept, follow_steps
from workers.media.speech import Silero

HEADER = 12
MAX_DECODE_SECONDS = 60.0


def raw_bytes(samples: npt.NDArray[np.float32], raw: Raw) -> bytes:
    """`samples`, (frames, channels), as a client sends them."""
    if raw.encoding == "f32le":
        return samples.astype("<f4").tobytes()
    kind = "<i2" if raw.encoding == "s16le" else ">i2"
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype(kind).tobytes()


@dataclass
class Journal:
    """What was sent. Chunks of one format that follow each other are one run."""

    folder: Path
    runs: list[Run] = field(default_factory=list)

    def append(self, raw: Raw, data: bytes) -> None:
        path = self.folder / "audio"
        with path.open("ab") as file:
            start = file.tell()
            file.write(len(data).to_bytes(4, "little") + b"\xff" * (HEADER - 4) + data)
            stop = file.tell()
        if self.runs and self.runs[-1].raw == raw:
            start = self.runs.pop().start
        self.runs.append(Run(str(path), start, stop, raw, HEADER))

    def attach(self, data: bytes) -> None:
        """A whole encoded file."""
        path = self.folder / f"{len(self.runs)}.file"
        path.write_bytes(data)
        self.runs.append(Run(str(path), 0, len(data), None))


class Follower:
    """The service's side: asks on from what the last answers said."""

    def __init__(self, journal: Journal, silero: Silero) -> None:
        self.journal = journal
        self.pcm = journal.folder / "pcm"
        self.silero = silero
        self.kept = Kept()
        self.steps = 0
        self.samples = self.base = self.first = 0
        self.memory = b""
        self.probabilities: list[float] = []
        self.levels: list[float] = []

    def job(self, ended: bool = False) -> Follow:
        return Follow(
            runs=tuple(self.journal.runs[self.first :]),
            pcm=str(self.pcm),
            base=self.base,
            samples=self.samples,
            ended=ended,
            heard=len(self.probabilities),
            memory=self.memory,
        )

    def once(self, ended: bool = False) -> Followed:
        progress, followed = run(self.job(ended), self.silero, self.kept)
        self.steps += len(progress)
        self.samples, self.base, self.memory = followed.samples, followed.base, followed.memory
        self.first += followed.runs
        self.probabilities += followed.probabilities
        self.levels += followed.levels
        return followed

    def follow(self, ended: bool = False) -> None:
        """Until there is no more."""
        while self.once(ended).more:
            pass

    def restart(self) -> None:
        """The worker is another one and remembers nothing."""
        self.kept = Kept()

    def begin_anew(self) -> None:
        """The service is another one: the PCM is gone, what was heard of it is known."""
        self.restart()
        self.pcm.write_bytes(b"")
        self.samples = self.base = self.first = 0

    @property
    def heard(self) -> npt.NDArray[np.int16]:
        return np.fromfile(self.pcm, "<i2")


def run(job: Follow, silero: Silero, kept: Kept, step_s: float = 0.0) -> tuple[list[Progress], Followed]:
    steps, progress = follow_steps(job, silero, kept, MAX_DECODE_SECONDS, step_s), []
    while True:
        try:
            progress.append(next(steps))
        except StopIteration as end:
            return progress, end.value
