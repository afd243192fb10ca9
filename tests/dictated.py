"""Speech that scripts understand: a word is a stretch of one sample value, silence is zeros. And workers that do.

Knows the jobs of a live dictation; knows no session. Everything they say follows from the audio, so that a session
that was interrupted can be held to the very answers of one that was not.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from protocol.events import (
    Decoded,
    Event,
    Followed,
    Guessed,
    GuessedWord,
    Progress,
    Segment,
    Speech,
    Timings,
    Transcribed,
    VocabularyReport,
)
from protocol.jobs import Decode, DetectSpeech, Follow, Guess, Heard, Job, Pcm, Raw, Span, Transcribe
from protocol.past import Reached
from tests.fakes import FakeWorker, Script

S16 = Raw(encoding="s16le")
RATE = 16_000
WINDOW = 512
WORD_S = 0.4

Samples = npt.NDArray[np.int16]


def spoken(*parts: int | float) -> bytes:
    """s16le: a word for each int (its number, from 1), a silence of so many seconds for each float."""
    pieces = [
        np.full(round(WORD_S * RATE), 1000 + part, np.int16)
        if isinstance(part, int)
        else np.zeros(round(part * RATE), np.int16)
        for part in parts
    ]
    return np.concatenate(pieces).tobytes() if pieces else b""


def text(*words: int) -> str:
    """What the words of `spoken` are as text."""
    return " ".join(f"word{word}" for word in words)


def cut(audio: bytes, samples: int) -> list[bytes]:
    """`audio` in chunks of so many samples."""
    return [audio[at : at + 2 * samples] for at in range(0, len(audio), 2 * samples)]


def ears(limit: int = 30 * RATE) -> dict[type[Job], Script]:
    """A live media worker that converts at most `limit` samples in one job. Encoded files are s16le with a name."""
    return {Follow: lambda job: _follow(job, limit), DetectSpeech: _detect, Decode: _decode}


def pen() -> dict[type[Job], Script]:
    """A speech worker. Each word is a segment, whose second token tells the prompt and the context it was given."""
    return {Transcribe: _transcribe, Guess: _guess}


def _follow(job: Follow, limit: int) -> Sequence[Event]:
    assert job.memory == _memory(job.heard), "the detector's memory is not that of the windows heard"
    pieces = [_audio(run.path, run.start, run.stop, run.header) for run in job.runs]
    whole = np.concatenate([np.zeros(0, np.int16), *pieces])
    samples = min(job.base + len(whole), job.samples + limit)
    more = samples < job.base + len(whole)
    with Path(job.pcm).open("r+b") as pcm:
        pcm.truncate(2 * job.base)
        pcm.seek(2 * job.base)
        pcm.write(whole[: samples - job.base].tobytes())
    runs, base = 0, job.base
    for run, piece in zip(job.runs, pieces, strict=True):
        last = run is job.runs[-1]
        if base + len(piece) > samples or (last and not job.ended and run.raw is not None):
            break
        runs, base = runs + 1, base + len(piece)
    count = -(-samples // WINDOW) if job.ended and not more else samples // WINDOW
    heard = np.fromfile(job.pcm, np.int16)[job.heard * WINDOW : count * WINDOW].astype(np.float64) / 32768
    heard = np.pad(heard, (0, -len(heard) % WINDOW)).reshape(-1, WINDOW)
    levels = np.sqrt((heard**2).mean(axis=1))
    voiced = (heard != 0).mean(axis=1) >= 0.5
    return [
        Progress(0, 0),
        Followed(
            samples=samples,
            runs=runs,
            base=base,
            probabilities=tuple(np.where(voiced, 0.95, 0.02).tolist()),
            levels=tuple(levels.tolist()),
            memory=_memory(max(count, job.heard)),
            more=more,
        ),
    ]


def _memory(heard: int) -> bytes:
    return b"" if heard == 0 else f"after {heard}".encode()


def _audio(path: str, start: int, stop: int, header: int) -> Samples:
    data = Path(path).read_bytes()[start:stop]
    if not header:
        return np.frombuffer(data, np.int16)
    found, at = b"", 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        found += data[at + header : at + header + size]
        at += header + size
    return np.frombuffer(found, np.int16)


def _decode(job: Decode) -> Sequence[Event]:
    samples = Path(job.source).stat().st_size // 2
    return [Decoded(samples=samples, decoder="soundfile", container="WAV", elapsed_ms=1.0)]


def _detect(job: DetectSpeech) -> Sequence[Event]:
    found = _heard(job.audio)
    return [Speech(spans=(Span(0, len(found)),) if found.any() else (), elapsed_ms=1.0)]


def _heard(audio: Pcm) -> Samples:
    samples = np.fromfile(audio.path, np.int16)
    assert audio.stop <= len(samples), "a job names audio that is not there"
    return samples[audio.start : audio.stop]


def _words(samples: Samples, start: int = 0) -> list[tuple[int, int, int]]:
    """Number, start and end in samples of each word."""
    words, at = [], 0
    for value, group in groupby(samples.tolist()):
        length = len(list(group))
        if value:
            words.append((value - 1000, start + at, start + at + length))
        at += length
    return words


def _transcribe(job: Transcribe) -> Sequence[Event]:
    seek = job.reached.seek if job.reached else 0
    prompt = zlib.crc32(f"{job.decoding.prompt} {job.decoding.before} {job.context}".encode()) & 0xFFFF
    start = job.context.stop if job.context else seek * 160
    words = _words(_heard(job.audio)[start:], start)
    total = job.audio.stop - job.audio.start
    reached = -(-total // 160)
    if not job.whole:
        window = seek * 160 + 30 * RATE
        if window > total:
            words, reached = [], seek
        else:
            words = [word for word in words if word[2] < window]
            reached = words[-1][2] // 160 if words else seek + 3000
    segments = [
        Segment(start / RATE, end / RATE, f" word{word}", (word, prompt), seek, 0.0, -0.2, 1.3, 0.01)
        for word, start, end in words
    ]
    report = VocabularyReport(1, 1, 2, 80) if job.decoding.vocabulary else None
    asked = job.decoding.language
    return [
        Progress(0, total / RATE),
        *segments,
        Transcribed(
            language=asked or ("en" if words else None),
            language_probability=0.9 if words and not asked else None,
            timings=Timings(decode=2.0),
            vocabulary=report,
            reached=Reached(seek=reached, said=tuple(word for word, _, _ in words), language="en"),
        ),
    ]


def _guess(job: Guess) -> Sequence[Event]:
    start = job.context.stop if job.context else 0
    found = _words(_heard(job.audio)[start:], start)
    words = tuple(GuessedWord(f" word{word}", (word,), end / RATE) for word, _, end in found)
    tokens = tuple(token for word in words for token in word.tokens)
    assert tokens[: len(job.said)] == job.said
    return [Guessed(words, tokens, -0.2, 0.01, 1.3, "en")]


class Fuse:
    """Stops the world at its `at`-th step: nothing goes on, nothing more is written. 0: never."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.steps = 0
        self.blown = asyncio.Event()

    async def step(self) -> None:
        self.steps += 1
        if self.at and self.steps >= self.at:
            self.blown.set()
            await asyncio.Event().wait()


class FusedWorker(FakeWorker):
    """A FakeWorker for which each event is a step."""

    def __init__(self, name: str, script: Mapping[type[Job], Script], fuse: Fuse) -> None:
        super().__init__(name, script)
        self._fuse = fuse

    async def run(self, job: Job) -> AsyncGenerator[Event, Heard | None]:
        await self._fuse.step()
        events = super().run(job)
        answer = None
        try:
            while True:
                try:
                    event = await events.asend(answer)
                except StopAsyncIteration:
                    return
                await self._fuse.step()
                answer = yield event
        finally:
            await events.aclose()
