"""Opens a client's file, whatever it is, and reads it block by block: libsndfile for one half, FFmpeg for the other.

Knows codecs and containers; knows nothing of rates and channels that Whisper wants, or of limits.
"""

from __future__ import annotations

import errno
import functools
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import av
import numpy as np
import numpy.typing as npt
import soundfile
from av.audio.plane import AudioPlane
from av.audio.stream import AudioStream
from av.container import InputContainer

from workers.media.containers import DEMUXERS, ESTIMATED_DURATION, has_evidence, is_for_soundfile

Floats = npt.NDArray[np.float32]

BLOCK_SECONDS = 10.0
"""Sound in one block, at most: what is decoded between two chances to cancel."""

_BLOCK_VALUES = 4 << 20
"""Samples times channels in one block, at most, whatever the header says of rates and channels."""

_STEP_S = 0.25
"""Wall-clock seconds after which the reader gives way although no block is full."""

_NO_HEADER = "it has no audio header that is known and whole; raw PCM needs one, such as WAV's"

_MAX_BAD_SHARE = 3
"""Damaged packets for each good frame, at most: a recording with holes stays under it, noise under a guessed
header does not."""


class Unreadable(Exception):
    """This reader cannot make anything of the file; `str()` says why, for the client."""


@dataclass(frozen=True)
class Block:
    """`samples`: (frames, channels) float32, full scale ±1; NaN and infinities as the file has them."""

    samples: Floats
    rate: int


@dataclass(frozen=True)
class Opened:
    """A file that a reader has taken on. `blocks` yields None when a step's time is over without a block."""

    decoder: Literal["soundfile", "pyav"]
    container: str
    claimed_seconds: float
    """What the header says; 0 when it says nothing, or only an estimate."""
    blocks: Iterator[Block | None]


def frames_per_block(rate: int, channels: int) -> int:
    return max(1, min(int(rate * BLOCK_SECONDS), _BLOCK_VALUES // channels))


def open_readers(path: str, expired: Callable[[], bool]) -> list[AbstractContextManager[Opened]]:
    """What to try, in this order."""
    ffmpeg = open_av(path, expired)
    return [open_soundfile(path), ffmpeg] if is_for_soundfile(path) else [ffmpeg]


@contextmanager
def open_soundfile(path: str) -> Iterator[Opened]:
    """`path` through libsndfile. Raises Unreadable, also when it finds no samples: FFmpeg may know better."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # By descriptor: soundfile would take a name that ends in .raw for headerless PCM.
        file = soundfile.SoundFile(descriptor, closefd=True)
    except soundfile.SoundFileError as error:
        raise Unreadable("libsndfile does not know it") from error
    with file:
        if file.subtype.startswith("MPEG"):
            raise Unreadable("libsndfile's MP3 decoder writes its complaints into the log")
        if not file.frames:
            raise Unreadable("libsndfile finds no samples in it")
        yield Opened("soundfile", file.format, file.frames / file.samplerate, _soundfile_blocks(file))


def _soundfile_blocks(file: soundfile.SoundFile) -> Generator[Block]:
    """Raises Unreadable when not even the first block can be read."""
    count = frames_per_block(file.samplerate, file.channels)
    read = 0
    while True:
        try:
            samples = file.read(count, dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            if not read:
                raise Unreadable("libsndfile cannot read its samples") from error
            return  # damaged from here on: what was good is kept
        if not len(samples):
            return
        read += len(samples)
        yield Block(samples, file.samplerate)


@contextmanager
def open_av(path: str, expired: Callable[[], bool]) -> Iterator[Opened]:
    """The first audio track of `path` through FFmpeg. Raises Unreadable.

    When `expired()` is true the file seems to end, so that a demuxer cannot search it for ever.
    """
    with Path(path).open("rb") as file:
        try:
            container = av.open(
                _Guarded(file, expired),
                "r",
                # Video decoders stay shut, and no container may name another file.
                options={"format_whitelist": ",".join(DEMUXERS), "codec_whitelist": ",".join(_audio_decoders())},
                metadata_errors="replace",
            )
        except av.FFmpegError as error:
            raise Unreadable(_NO_HEADER) from error
        with container:
            name = container.format.name
            if not has_evidence(path, name):
                raise Unreadable(_NO_HEADER)
            if not container.streams.audio:
                raise Unreadable("it has no audio track")
            stream = container.streams.audio[0]
            if stream.codec_context is None:
                raise Unreadable("its audio codec is not known")
            stream.codec_context.thread_count = 1
            yield Opened("pyav", name, _claimed_seconds(container, stream), _av_blocks(container, stream))


class _Guarded:
    """A file for FFmpeg's callbacks: it never raises, and it ends when time is over."""

    def __init__(self, file: BinaryIO, expired: Callable[[], bool]) -> None:
        self._file = file
        self._expired = expired

    def read(self, size: int) -> bytes:
        return b"" if self._expired() else self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return self._file.seek(offset, whence)
        except (OSError, ValueError):
            return -errno.EINVAL  # a damaged index points outside the file: FFmpeg wants a code, not an exception

    def tell(self) -> int:
        return self._file.tell()


@functools.cache
def _audio_decoders() -> tuple[str, ...]:
    return tuple(sorted(name for name in av.codecs_available if _is_audio_decoder(name)))


def _is_audio_decoder(name: str) -> bool:
    try:
        return av.Codec(name, "r").type == "audio"
    except av.codec.codec.UnknownCodecError:
        return False  # it only encodes


def _claimed_seconds(container: InputContainer, stream: AudioStream) -> float:
    if container.format.name in ESTIMATED_DURATION:
        return 0.0
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration else 0.0


def _av_blocks(container: InputContainer, stream: AudioStream) -> Generator[Block | None]:
    """Frames joined into blocks of one rate and channel count. Raises Unreadable at the end if it was noise."""
    waiting: list[Floats] = []
    held = rate = channels = 0
    began = time.monotonic()
    for frame in _frames(container, stream):
        if frame is not None:
            samples = _to_float(frame)
            if waiting and (frame.sample_rate, samples.shape[1]) != (rate, channels):
                yield Block(np.concatenate(waiting), rate)
                waiting, held = [], 0
            rate, channels = frame.sample_rate, samples.shape[1]
            waiting.append(samples)
            held += len(samples)
        if waiting and held >= frames_per_block(rate, channels):
            yield Block(np.concatenate(waiting), rate)
            waiting, held, began = [], 0, time.monotonic()
        elif time.monotonic() - began > _STEP_S:
            yield None
            began = time.monotonic()
    if waiting:
        yield Block(np.concatenate(waiting), rate)


def _frames(container: InputContainer, stream: AudioStream) -> Generator[av.AudioFrame | None]:
    """Decoded frames; None for a packet that gave none. Damaged packets are passed over."""
    good = bad = 0
    for packet in _packets(container, stream):
        try:
            frames = stream.codec_context.decode(packet)
        except av.EOFError:
            continue  # the decoder has given all
        except av.FFmpegError:
            frames = []
            bad += 1
        usable = [frame for frame in frames if frame.samples and frame.sample_rate]
        good += len(usable)
        yield from usable
        if not usable:
            yield None
    if bad > _MAX_BAD_SHARE * good:
        raise Unreadable("hardly anything in it can be decoded")


def _packets(container: InputContainer, stream: AudioStream) -> Generator[av.Packet[AudioStream] | None]:
    """The track's packets; the last is empty or None and makes the decoder give what it holds back."""
    try:
        yield from container.demux(stream)
    except av.FFmpegError:
        yield None  # the file breaks off here
    except IndexError:
        yield None  # PyAV stumbles, at the end, over tracks that a transport stream announced on its way


_SAMPLE_TYPES = {
    "u8": ("u1", 2.0**-7),
    "s16": ("i2", 2.0**-15),
    "s32": ("i4", 2.0**-31),
    "s64": ("i8", 2.0**-63),
    "flt": ("f4", 1.0),
    "dbl": ("f8", 1.0),
}
"""FFmpeg's sample formats, packed and planar ("s16p") alike: NumPy's type, and what brings it to full scale ±1."""


def _to_float(frame: av.AudioFrame) -> Floats:
    """(samples, channels), full scale ±1."""
    kind, scale = _SAMPLE_TYPES[frame.format.name.removesuffix("p")]
    channels = frame.layout.nb_channels
    planes = channels if frame.format.is_planar else 1
    count = frame.samples * channels // planes
    # Not by to_ndarray: it lacks s64, and for more than eight channels it reads beyond the list of planes.
    raw = [np.frombuffer(AudioPlane(frame, i), kind, count) for i in range(planes)]  # type: ignore[call-overload]
    with np.errstate(over="ignore", invalid="ignore"):
        samples = np.stack(raw, 1).astype(np.float32).reshape(-1, channels)
    return (samples - np.float32(128 if kind == "u1" else 0)) * np.float32(scale)
