"""How a chunk lies in a journal's file: a header, which says all about it, and its bytes; and what is left of that on a
disk that was cut off or has gone bad. Knows no session.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import msgspec

from protocol.jobs import Raw
from service.disk import sync

MARK = b"starling audio 1"

_FIELDS = Struct("<IIIIQQHH")
"""Length and CRC-32 of the bytes that follow, the chunk's number, rate, samples after it, size of its file, encoding
(0: an encoded file), channels."""
_CHECK = Struct("<I")
"""CRC-32 of the fields."""
HEADER_BYTES = _FIELDS.size + _CHECK.size

_ENCODINGS = ("", "s16le", "s16be", "f32le")
_NUMBER_AT = 8
"""Where in a header the chunk's number is."""
MOST_LOST = 64
"""Headers in a row, on a page of the disk that went bad, behind which the next one is looked for."""


class Header(msgspec.Struct, frozen=True):
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
    def unpacked(cls, data: bytes) -> Header | None:
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


class Reading:
    """What a journal's file holds. A context manager.

    A chunk is written when the one before it is safe, so only the last one's bytes can be torn. Those of others are
    not looked at: should a disk have changed one, it is still the audio that we have.
    """

    def __init__(self, path: Path) -> None:
        """Raises ValueError for a file that is no journal."""
        with path.open("rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            if file.read(len(MARK)) != MARK:
                raise ValueError(f"{path.name} does not begin as one")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()

    def chunks(self) -> Iterator[tuple[int, Header]]:
        """Where each whole chunk's header begins, and the header. Numbers are missing where one cannot be read."""
        following = self._from(len(MARK), 0)
        while following is not None:
            at, header = following
            start, stop = at + HEADER_BYTES, at + HEADER_BYTES + header.length
            if stop > self.size:
                return
            following = self._from(stop, header.number + 1)
            if following is None and zlib.crc32(self._data[start:stop]) != header.checksum:
                return
            yield at, header

    def _from(self, at: int, number: int) -> tuple[int, Header] | None:
        """The chunk with that number, which should be at byte `at`, or the first one behind it that can be read."""
        header = self._header(at)
        if header is not None and header.number == number:
            return at, header
        for later in range(number + 1, number + 1 + MOST_LOST):
            wanted = later.to_bytes(4, "little")
            found = self._data.find(wanted, at + _NUMBER_AT)
            while found >= 0:
                header = self._header(found - _NUMBER_AT)
                if header is not None and header.number == later:
                    return found - _NUMBER_AT, header
                found = self._data.find(wanted, found + 1)
        return None

    def _header(self, at: int) -> Header | None:
        return Header.unpacked(self._data[at : at + HEADER_BYTES])


def write_header(path: Path, at: int, header: Header) -> None:
    """Put the header, with the checksum of the bytes that lie behind it, at byte `at`, and wait until it is safe."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        data = os.pread(descriptor, header.length, at + HEADER_BYTES)
        os.pwrite(descriptor, msgspec.structs.replace(header, checksum=zlib.crc32(data)).packed(), at)
        sync(descriptor)
    finally:
        os.close(descriptor)
