"""Plays one run, raw audio out of a journal or an encoded file, as 16 kHz mono, from its start or from where it was.

Knows bytes and frames; knows no job and writes nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np

from protocol.errors import InternalError, RequestTimeout, UndecodableAudio
from protocol.jobs import Raw, Run
from protocol.settings import SAMPLE_RATE
from workers.media.convert import Converter
from workers.media.readers import Block, Floats, Unreadable, open_readers

PIECE_SECONDS = 1
"""Raw audio that is converted at once: some milliseconds of work."""

_LENGTH_BYTES = 4
_NOTHING = np.zeros(0, np.float32)
_TYPES = {"s16le": ("<i2", 2.0**-15), "s16be": (">i2", 2.0**-15), "f32le": ("<f4", 1.0)}
"""NumPy's type, and what brings it to full scale ±1."""


class Playback:
    """One run on its way. `base`: samples of the recording before it; `position`: with those made of it so far."""

    def __init__(self, run: Run, base: int, samples: int) -> None:
        """`samples`: those of the whole recording that are there; what can be skipped of them is."""
        self.base = base
        self.position = base
        self._run = run
        self._converter = Converter()
        self._source: _Chunks | _File = _File(run.path) if run.raw is None else _Chunks(run, run.raw)
        if isinstance(self._source, _Chunks) and run.raw is not None and _passes(run.raw):
            self.position += self._source.skip(run, samples - base)

    def plays(self, run: Run) -> bool:
        """Whether `run` is this one, grown at most."""
        mine = self._run
        return (run.path, run.start, run.raw, run.header) == (mine.path, mine.start, mine.raw, mine.header)

    def advance(self, run: Run, max_seconds: float) -> Floats | None:
        """The samples that come of the next piece of `run`, which may have grown: often none. None: all was read.

        Raises UndecodableAudio; RequestTimeout after `max_seconds` without any block; InternalError, OSError.
        """
        blocks = self._source.read(run, max_seconds)
        if blocks is None:
            return None
        return self._moved(np.concatenate([_NOTHING, *(self._converter.convert(block) for block in blocks)]))

    def flush(self) -> Floats:
        """The last samples: the run is complete."""
        return self._moved(self._converter.flush())

    def _moved(self, samples: Floats) -> Floats:
        self.position += len(samples)
        return samples

    def close(self) -> None:
        self._source.close()


def _passes(raw: Raw) -> bool:
    """Whether each frame is a sample, which no other has an influence on."""
    return raw.rate == SAMPLE_RATE and raw.channels == 1


class _Chunks:
    """Raw frames out of a file with or without headers. Holds no file open."""

    def __init__(self, run: Run, raw: Raw) -> None:
        self._raw = raw
        self._header = run.header
        self._at = run.start
        self._left = 0
        """Bytes from `_at` to the end of the chunk."""

    def read(self, run: Run, max_seconds: float) -> tuple[Block, ...] | None:
        """At most a second of what comes next; None when there is nothing before `run.stop`."""
        data = b"".join(self._pieces(run, PIECE_SECONDS * self._raw.rate * self._raw.frame_bytes))
        if not data:
            return None
        if len(data) % self._raw.frame_bytes:
            raise InternalError("the recording ends within a frame")
        kind, scale = _TYPES[self._raw.encoding]
        samples = np.frombuffer(data, kind).astype(np.float32) * np.float32(scale)
        return (Block(samples.reshape(-1, self._raw.channels), self._raw.rate),)

    def skip(self, run: Run, frames: int) -> int:
        """Pass over `frames`; how many there were."""
        wanted = frames * self._raw.frame_bytes
        with Path(run.path).open("rb", buffering=0) as file:
            passed = sum(self._spans(run, file.fileno(), wanted))
        return passed // self._raw.frame_bytes

    def close(self) -> None:
        """Nothing is open."""

    def _pieces(self, run: Run, wanted: int) -> Generator[bytes]:
        """The next `wanted` bytes of audio, or those that are there."""
        with Path(run.path).open("rb", buffering=0) as file:
            for size in self._spans(run, file.fileno(), wanted):
                piece = os.pread(file.fileno(), size, self._at - size)
                if len(piece) < size:
                    raise InternalError("the recording is shorter than announced")
                yield piece

    def _spans(self, run: Run, file: int, wanted: int) -> Generator[int]:
        """Move over `wanted` bytes of audio at most; the lengths of the spans between headers, the last ends at _at."""
        while wanted > 0 and self._at < run.stop:
            if not self._left:
                self._enter_chunk(run, file)
            size = min(self._left, wanted)
            self._at, self._left, wanted = self._at + size, self._left - size, wanted - size
            if size:
                yield size

    def _enter_chunk(self, run: Run, file: int) -> None:
        if not self._header:
            self._left = run.stop - self._at
            return
        length = os.pread(file, _LENGTH_BYTES, self._at)
        self._at += self._header
        self._left = int.from_bytes(length, "little")
        if len(length) < _LENGTH_BYTES or self._at + self._left > run.stop:
            raise InternalError("the recording's chunks are not where they were announced")


class _File:
    """An encoded file, open while it is read."""

    def __init__(self, path: str) -> None:
        self._deadline = 0.0
        self._blocks = _file_blocks(path, lambda: time.monotonic() > self._deadline)

    def read(self, run: Run, max_seconds: float) -> tuple[Block, ...] | None:
        """The next block, or none when that takes long; None at the end."""
        # For each block anew: between two of them are other jobs.
        self._deadline = time.monotonic() + max_seconds
        try:
            block = next(self._blocks)
        except StopIteration:
            return None
        finally:
            if time.monotonic() > self._deadline:
                raise RequestTimeout(f"decoding the file takes more than {max_seconds:g} seconds")
        return (block,) if block is not None else ()

    def close(self) -> None:
        self._blocks.close()


def _file_blocks(path: str, expired: Callable[[], bool]) -> Generator[Block | None]:
    """What the first reader makes of it that can. Raises UndecodableAudio, FileNotFoundError."""
    reason = ""
    for open_reader in open_readers(path, expired):
        try:
            with open_reader as opened:
                yield from opened.blocks
        except Unreadable as error:
            # Only before a reader's first block, or at the end of FFmpeg's, which is the last.
            reason = str(error)
            continue
        return
    raise UndecodableAudio(f"the file cannot be decoded as audio: {reason}", param="file")
