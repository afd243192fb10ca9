"""Which kinds of file are opened at all, and by what evidence in their bytes.

Knows magic numbers and frame headers; decodes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

SOUNDFILE_MAGIC = (
    b"RIFF",
    b"RIFX",
    b"RF64",
    b"riff\x2e\x91\xcf\x11",  # Sony Wave64
    b"FORM",  # AIFF, 8SVX
    b".snd",
    b"dns.",
    b"NIST_1A",
    b"Creative Voice File",
    b"\x64\xa3\x01\x00",  # IRCAM, four byte orders and versions
    b"\x64\xa3\x02\x00",
    b"\x00\x01\xa3\x64",
    b"\x00\x02\xa3\x64",
    b" paf",
    b"fap ",
    b"PVF1",
    b"2BIT",  # AVR
    b"MATLAB 5.0",
    b"Extended Instrument:",  # FastTracker 2
)
"""What libsndfile reads, by first bytes. FLAC, Ogg, MP3 and CAF are FFmpeg's: libsndfile gives up at the first damaged
frame of a FLAC, where FFmpeg goes on. Its formats without a magic number (HTK, raw) would take noise for audio."""

DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2",
    "matroska,webm",
    "ogg",
    "wav",
    "w64",
    "aiff",
    "au",
    "caf",
    "flac",
    "mp3",
    "aac",
    "ac3",
    "eac3",
    "amr",
    "asf",
    "asf_o",
    "avi",
    "flv",
    "mpegts",
    "mpeg",
    "ape",
    "wv",
    "tta",
    "tak",
    "mpc",
    "mpc8",
    "oma",
    "rm",
    "voc",
    "qcp",
    "dsf",
    "shn",
)
"""FFmpeg's names of the containers that are opened. The list keeps out playlists (hls, concat, dash: they open other
files and addresses), pictures, subtitles, and whatever takes any bytes at all for audio."""

ESTIMATED_DURATION = ("mp3", "aac", "ac3", "eac3", "mpegts", "mpeg", "amr")
"""Demuxers whose duration is a guess from the bit rate of the first frames, several times off for a variable one."""

_HEAD_BYTES = 256 << 10
"""How far after its tags a stream without a file header may begin, after junk."""

_MIN_FRAMES = 3
"""Frame headers in a row that prove a stream. One alone is in every few KiB of noise; three are not in a terabyte."""


def is_for_soundfile(path: str) -> bool:
    """Whether the first bytes are of a kind that libsndfile reads best."""
    with Path(path).open("rb") as file:
        return file.read(32).startswith(SOUNDFILE_MAGIC)


def has_evidence(path: str, demuxer: str) -> bool:
    """Whether the bytes bear out what FFmpeg guessed. Formats with a header of their own need no further proof."""
    if demuxer not in ("mp3", "aac", "mpegts"):
        return True
    with Path(path).open("rb") as file:
        _skip_tags(file)
        head = file.read(_HEAD_BYTES)
    if demuxer == "mpegts":
        return _is_transport_stream(head)
    size = mp3_frame_size if demuxer == "mp3" else adts_frame_size
    return any(_is_chain(head, at, size) for at in _sync_positions(head))


def mp3_frame_size(header: bytes) -> int:
    """Bytes of the MPEG audio frame (layer I to III) whose 4-byte header this is; 0 when it is none."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return 0
    version, layer = (header[1] >> 3) & 3, 4 - ((header[1] >> 1) & 3)
    bitrate_index, rate_index = header[2] >> 4, (header[2] >> 2) & 3
    if version == 1 or layer == 4 or bitrate_index in (0, 15) or rate_index == 3:
        return 0
    rate = (44100, 48000, 32000)[rate_index] >> {3: 0, 2: 1, 0: 2}[version]
    bitrate = 1000 * _BITRATES[(version == 3, layer)][bitrate_index - 1]
    padding = (header[2] >> 1) & 1
    if layer == 1:
        return (12 * bitrate // rate + padding) * 4
    return (72 if layer == 3 and version != 3 else 144) * bitrate // rate + padding


_BITRATES = {
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""kbit/s for the indices 1 to 14, by (MPEG-1, layer); ISO/IEC 11172-3 and 13818-3."""


def adts_frame_size(header: bytes) -> int:
    """Bytes of the AAC frame whose ADTS header begins here (6 bytes are looked at); 0 when it is none."""
    if len(header) < 6 or header[0] != 0xFF or header[1] & 0xF6 != 0xF0 or (header[2] >> 2) & 15 > 12:
        return 0
    size = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    return size if size >= 7 else 0


def _skip_tags(file: BinaryIO) -> None:
    """Move `file` from its start to the first byte after its ID3v2 tags; several may follow each other."""
    while True:
        start = file.tell()
        head = file.read(10)
        if len(head) < 10 or head[:3] != b"ID3" or max(head[6:10]) > 127:
            file.seek(start)
            return
        size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
        file.seek(start + 10 + size + (10 if head[5] & 0x10 else 0))


def _sync_positions(head: bytes) -> Iterator[int]:
    """Where eleven set bits begin at a byte."""
    at = head.find(0xFF)
    while at >= 0:
        if at + 1 < len(head) and head[at + 1] & 0xE0 == 0xE0:
            yield at
        at = head.find(0xFF, at + 1)


def _is_chain(head: bytes, at: int, frame_size: Callable[[bytes], int]) -> bool:
    """Whether _MIN_FRAMES frames of one kind (version, layer, rate) stand one behind the other from `at` on."""
    kinds = set()
    for _ in range(_MIN_FRAMES):
        header = head[at : at + 6]
        size = frame_size(header)
        if not size:
            return False
        kinds.add((header[1] & 0xFE, header[2] & 0x0C))
        at += size
    return len(kinds) == 1


def _is_transport_stream(head: bytes) -> bool:
    """Five packets of 188 bytes (192 and 204 with their extras), each beginning with the sync byte."""
    return any(
        len(head) > start + 4 * packet and all(head[start + i * packet] == 0x47 for i in range(5))
        for packet in (188, 192, 204)
        for start in range(packet)
    )
