"""The audio of a dictation as it was sent, on disk before anybody is told that it was taken.

One file holds a header and the bytes of each chunk; a chunk that is an encoded file has only its header there and lies
beside it. Knows no worker: to one that converts the audio, it is a few long runs of one format each.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import overload

import msgspec

from protocol.errors import DiskFull
from protocol.jobs import Raw, Run
from service.dictation.chunk import Chunk
from service.dictation.growing import GrowingFile, settled
from service.disk import sync_folder

MARK = b"starling audio 1"

_FIELDS = Struct("<IIIIQQHH")
"""Length and CRC-32 of the bytes that follow, the chunk's number, rate, samples after it, size of its file, encoding
(0: an encoded file), channels."""
_CHECK = Struct("<I")
"""CRC-32 of the fields."""
HEADER_BYTES = _FIELDS.size + _CHECK.size

_ENCODINGS = ("", "s16le", "s16be", "f32le")


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


class _Header(msgspec.Struct, frozen=True):
    length: int
    checksum: int
    number: int
    samples: int
    file_bytes: int
    raw: Raw | None

    def packed(self) -> bytes:
        raw = self.raw
        encoding, rate, channels = (
            (0, 0, 0) if raw is None else (_ENCODINGS.index(raw.encoding), raw.rate, raw.channels)
        )
        fields = _FIELDS.pack(
            self.length, self.checksum, self.number, rate, self.samples, self.file_bytes, encoding, channels
        )
        return fields + _CHECK.pack(zlib.crc32(fields))

    @classmethod
    def unpacked(cls, data: bytes) -> _Header | None:
        """None for bytes that are no header."""
        if len(data) < HEADER_BYTES or _CHECK.unpack_from(data, _FIELDS.size) != (zlib.crc32(data[: _FIELDS.size]),):
            return None
        length, checksum, number, rate, samples, file_bytes, encoding, channels = _FIELDS.unpack_from(data)
        raw = (
            msgspec.convert({"encoding": _ENCODINGS[encoding], "rate": rate, "channels": channels}, Raw)
            if encoding
            else None
        )
        return cls(length, checksum, number, samples, file_bytes, raw)


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
        """Read what is there. What a service that died was about to write goes.

        Raises ValueError for a file that is no journal.
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
        for header in _read(self._path):
            self._add(header, size)
            size += HEADER_BYTES + header.length
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
        goes_on = self._last_raw == chunk.raw
        base, before = (self._base, self._run_bytes) if goes_on else (self.records.samples, 0)
        return base + chunk.raw.samples((before + len(chunk.data)) // chunk.raw.frame_bytes)

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
                header = _Header(0, 0, number, total, chunk.bytes, None)
                await settled(lambda: self._write(header, b"", chunk.path), lambda at: self._add(header, at))
            else:
                header = _Header(len(chunk.data), zlib.crc32(chunk.data), number, self.after(chunk), 0, chunk.raw)
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
        return self._runs[-1].raw if self._runs else None

    def _write(self, header: _Header, data: bytes, source: Path | None) -> int:
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

    def _add(self, header: _Header, at: int) -> None:
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


def _read(path: Path) -> Iterator[_Header]:
    """The headers of whole chunks, in order. Raises ValueError for a file that is no journal.

    A chunk is written when the one before it is safe, so only the last one's bytes can be torn. Those of others are
    not looked at: should a disk have changed one, it is still the audio that we have.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if os.pread(descriptor, len(MARK), 0) != MARK:
            raise ValueError(f"{path.name} does not begin as one")
        at, number = len(MARK), 0
        header = _Header.unpacked(os.pread(descriptor, HEADER_BYTES, at))
        while header is not None and header.number == number:
            start, at = at + HEADER_BYTES, at + HEADER_BYTES + header.length
            following = _Header.unpacked(os.pread(descriptor, HEADER_BYTES, at))
            if at > size:
                return
            if following is None and zlib.crc32(os.pread(descriptor, header.length, start)) != header.checksum:
                return
            yield header
            header, number = following, number + 1
    finally:
        os.close(descriptor)
