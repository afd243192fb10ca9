"""The audio of a dictation as it was sent, on disk before anybody is told that it was taken.

One file holds a header and the bytes of each chunk; a chunk that is an encoded file has only its header there and lies
beside it. Knows no worker: to one that converts the audio, it is a few long runs of one format each.
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import msgspec

from protocol.errors import DiskFull
from protocol.jobs import Raw, Run
from service.dictation.chunk import Chunk
from service.dictation.frames import HEADER_BYTES, MARK, Header, Reading, write_header
from service.dictation.growing import GrowingFile, settled
from service.disk import disk_full, private, sync_folder

SILENCE = Raw("s16le", 16_000, 1)

log = logging.getLogger("starling.dictation")


@dataclass(frozen=True)
class Received:
    """An encoded file in the session's folder that is no part of the session yet."""

    path: Path
    target: Path
    """Where it can be decoded to, to see that it can; goes with it."""
    bytes: int


class Record(msgspec.Struct, frozen=True):
    """One chunk that is safe."""

    samples: int
    """Those of the whole session after it, at 16 kHz."""


class Records(Sequence[Record]):
    """The chunks by number. Eight bytes each: an hour of chunks of 10 ms are 360,000."""

    def __init__(self) -> None:
        self._samples = array("Q")

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, number: int) -> Record: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Record]: ...
    def __getitem__(self, number: int | slice) -> Record | Sequence[Record]:
        if isinstance(number, slice):
            return [Record(samples) for samples in self._samples[number]]
        return Record(self._samples[number])

    @property
    def samples(self) -> int:
        return self._samples[-1] if self._samples else 0

    def add(self, samples: int) -> None:
        self._samples.append(samples)


class Journal:
    """The chunks of one session; `folder` is the session's and holds a file `audio` that begins with MARK."""

    def __init__(self, folder: Path) -> None:
        """Read what is there. What a service that died was about to write goes; of what the disk has damaged since,
        all that can be read stays, in its place.

        Raises ValueError for a file that is no journal, OSError, DiskFull.
        """
        self._folder = folder
        self._path = folder / "audio"
        self._turn = asyncio.Lock()
        self.records = Records()
        self._runs: list[Run] = []
        self._base = 0
        """Samples before the last run."""
        self._run_bytes = 0
        """Bytes of audio in the last run."""
        self._file_bytes = 0
        size = len(MARK)
        with Reading(self._path) as reading:
            for at, header in reading.chunks():
                if header.number > len(self.records):
                    self._mend(size, at, header)
                self._add(header, at)
                size = at + HEADER_BYTES + header.length
            if reading.size > size:
                log.info("%s ends with a chunk that nobody was told of: %d bytes go", self._path, reading.size - size)
        self._audio = GrowingFile(self._path, size)

    @property
    def size(self) -> int:
        """Bytes on disk, those of the encoded files too."""
        return self._audio.size + self._file_bytes

    def runs(self, first: int = 0) -> tuple[Run, ...]:
        """From number `first` on. Raw chunks of one format that follow each other are one; the last may yet grow."""
        return tuple(self._runs[first:])

    def after(self, chunk: Chunk) -> int:
        """The session's samples if this raw chunk came now."""
        if chunk.raw is None:
            raise ValueError("only decoding tells how many samples an encoded file holds")
        if not chunk.data:
            return self.records.samples
        return self._total(chunk.raw, len(chunk.data))

    def _total(self, raw: Raw, length: int) -> int:
        """The session's samples with so many bytes more."""
        goes_on = self._last_raw == raw
        base, before = (self._base, self._run_bytes) if goes_on else (self.records.samples, 0)
        return base + raw.samples((before + length) // raw.frame_bytes)

    async def append(self, chunk: Chunk | Received, seq: int | None = None, samples: int | None = None) -> None:
        """Take a chunk: raw, or a file that was found to hold `samples` at 16 kHz. `seq` can only be the next number.

        Raises DiskFull, or OSError for other reasons, and is then as before. A caller that is cancelled is so when it
        is known whether the chunk is safe.
        """
        async with self._turn:
            number = len(self.records)
            if seq is not None and seq != number:
                raise ValueError(f"chunk {seq} where {number} is the next")
            if isinstance(chunk, Received):
                if samples is None:
                    raise ValueError("an encoded file without its samples")
                total = self.records.samples + samples
                header = Header(0, 0, number, total, chunk.bytes, None)
                await settled(lambda: self._write(header, b"", chunk.path), lambda at: self._add(header, at))
            else:
                header = Header(len(chunk.data), zlib.crc32(chunk.data), number, self.after(chunk), 0, chunk.raw)
                await settled(lambda: self._write(header, chunk.data, None), lambda at: self._add(header, at))

    def close(self) -> None:
        self._audio.close()

    def file(self, number: int) -> Path:
        """Where the encoded file with that number lies."""
        return self._folder / f"{number}.file"

    def files(self) -> set[Path]:
        return {Path(run.path) for run in self._runs if run.raw is None}

    @property
    def _last_raw(self) -> Raw | None:
        """The format of the run that a chunk can go on; None: there is none."""
        return self._runs[-1].raw if self._runs and self._runs[-1].header else None

    def _write(self, header: Header, data: bytes, source: Path | None) -> int:
        """In a thread. Where the header begins."""
        at = self._audio.size
        if source is None:
            self._audio.append(header.packed() + data, safe=True)
            return at
        file = self.file(header.number)
        source.rename(file)
        try:
            sync_folder(self._folder)
            self._audio.append(header.packed(), safe=True)
        except (OSError, DiskFull):
            file.unlink(missing_ok=True)
            raise
        return at

    def _mend(self, start: int, stop: int, following: Header) -> None:
        """The headers from byte `start` to `stop`, where `following` lies, cannot be read. What one of them said
        follows from its neighbours; else what is missing becomes silence, so that all else keeps its place."""
        number, lost = len(self.records), following.number - len(self.records)
        before = following.samples - _alone(following)
        if lost == 1 and (header := self._implied(stop - start - HEADER_BYTES, before, following)) is not None:
            log.error("%s: the header of chunk %d was damaged and is made again", self._path, number)
            write_header(self._path, start, header)
            self._add(header, start)
            return
        missing = max(0, before - self.records.samples) if following.raw else 0
        log.error(
            "%s: chunks %d to %d are damaged at byte %d; in their place are %d samples of silence",
            self._path,
            number,
            following.number - 1,
            start,
            missing,
        )
        if missing:
            gap = self._folder / f"{number}.gap"
            with disk_full(), private(gap, os.O_WRONLY | os.O_CREAT) as file:
                file.truncate(2 * missing)
            self._runs.append(Run(str(gap), 0, 2 * missing, SILENCE))
        after = self.records.samples + missing
        for _ in range(lost):
            self.records.add(after)

    def _implied(self, length: int, before: int, following: Header) -> Header | None:
        """The header of a chunk of so many bytes after the last one; `before`: samples before the `following` one."""
        number, raw = len(self.records), following.raw
        if length == 0 and self.file(number).exists():
            return Header(0, 0, number, before, self.file(number).stat().st_size, None)
        if raw is None or self._last_raw not in (None, raw) or length < 0 or length % raw.frame_bytes:
            return None
        fits = self._total(raw, length + following.length) == following.samples
        return Header(length, 0, number, self._total(raw, length), 0, raw) if fits else None

    def _add(self, header: Header, at: int) -> None:
        """A chunk whose header begins at byte `at` is safe."""
        if header.raw is None:
            self._base, self._run_bytes = self.records.samples, 0
            self._file_bytes += header.file_bytes
            self._runs.append(Run(str(self.file(header.number)), 0, header.file_bytes, None))
        elif header.length:
            stop = at + HEADER_BYTES + header.length
            if self._last_raw == header.raw:
                self._runs[-1] = msgspec.structs.replace(self._runs[-1], stop=stop)
            else:
                self._base, self._run_bytes = self.records.samples, 0
                self._runs.append(Run(str(self._path), at, stop, header.raw, HEADER_BYTES))
            self._run_bytes += header.length
        self.records.add(header.samples)


def _alone(header: Header) -> int:
    """Samples of a chunk of raw audio, or about that where its rate is another one; those of a file nobody knows."""
    return header.raw.samples(header.length // header.raw.frame_bytes) if header.raw else 0
