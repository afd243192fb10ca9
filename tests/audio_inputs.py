"""Awkward recordings of all kinds, made from speech with numpy, soundfile and PyAV: no executable, no network.

Knows how writers in the wild get files wrong; knows nothing of Starling.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import soundfile
import soxr

RATE = 16_000

Audio = npt.NDArray[np.float32]
"""(samples,) or (samples, channels), full scale ±1, at 16 kHz unless said otherwise."""

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501012718e366"
    "0000000049454e44ae426082"
)


def at_rate(audio: Audio, rate: int) -> Audio:
    resampled: Audio = soxr.resample(audio, RATE, rate)
    return resampled


def s16le(audio: Audio) -> bytes:
    return np.clip(np.rint(audio * 32768), -32768, 32767).astype("<i2").tobytes()


# ---- WAV by hand -------------------------------------------------------------------------------------------------


def wav_format(
    tag: int = 1, channels: int = 1, rate: int = RATE, bits: int = 16, extra: bytes = b"", align: int | None = None
) -> bytes:
    """The body of a `fmt ` chunk, with whatever nonsense it is told."""
    align = channels * bits // 8 & 0xFFFF if align is None else align
    return struct.pack("<HHIIHH", tag, channels, rate, rate * align & 0xFFFFFFFF, align, bits) + extra


def riff(
    data: bytes,
    form: bytes | None = None,
    riff_size: int | None = None,
    data_size: int | None = None,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A WAV of `data`; sizes as given, else the true ones."""
    form = wav_format() if form is None else form
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + before
    body += b"data" + struct.pack("<I", len(data) if data_size is None else data_size) + data + after
    return b"RIFF" + struct.pack("<I", len(body) if riff_size is None else riff_size) + body


def extensible_24(audio: Audio) -> bytes:
    """WAVE_EXTENSIBLE with 24-bit PCM, as recorders write it."""
    guid = bytes.fromhex("0100000000001000800000aa00389b71")
    data = (np.clip(audio, -1, 1) * 8388607).astype("<i4").view("u1").reshape(-1, 4)[:, :3].tobytes()
    return riff(data, wav_format(0xFFFE, bits=24, extra=struct.pack("<HHI", 22, 24, 4) + guid))


def s64_wav(audio: Audio) -> bytes:
    return riff((audio.astype(np.float64) * 2.0**62).astype("<i8").tobytes(), wav_format(bits=64))


def sound(
    audio: Audio | npt.NDArray[np.int16], container: str = "WAV", subtype: str = "PCM_16", rate: int = RATE
) -> bytes:
    """What libsndfile writes."""
    file = io.BytesIO()
    soundfile.write(file, audio, rate, format=container, subtype=subtype)
    return file.getvalue()


# ---- everything that FFmpeg writes -------------------------------------------------------------------------------


class Pipe(io.RawIOBase):
    """A file that cannot seek, as a browser's recorder or a shell pipe is."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written += data
        return len(data)

    def getvalue(self) -> bytes:
        return bytes(self._written)


def encode(
    audio: Audio,
    container: str,
    codec: str,
    rate: int = RATE,
    *,
    bit_rate: int = 0,
    options: dict[str, str] | None = None,
    codec_options: dict[str, str] | None = None,
    live: bool = False,
    picture: bool = False,
    cover: bool = False,
) -> bytes:
    """`audio` in `container` through PyAV. `live`: to a pipe; `picture`: with an H.264 track before the sound's;
    `cover`: with a PNG cover. Writes samples as they are at `rate`."""
    sink: Any = Pipe() if live else io.BytesIO()
    audio = audio if audio.ndim == 2 else audio[:, None]
    with av.open(sink, "w", format=container, options=options or {}) as out:
        video = _add_video(out) if picture else None
        stream: Any = out.add_stream(codec, rate=rate, layout={1: "mono", 2: "stereo", 6: "5.1"}[audio.shape[1]])
        stream.codec_context.options = codec_options or {}
        if bit_rate:
            stream.bit_rate = bit_rate
        image = _add_cover(out) if cover else None
        out.start_encoding()
        if image is not None:
            out.mux(image)
        if video is not None:
            _write_picture(out, video, len(audio) / RATE)
        for frame in _frames(audio, stream, rate):
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return bytes(sink.getvalue())


def video_only(seconds: float = 1.0) -> bytes:
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as out:
        _write_picture(out, _add_video(out), seconds)
    return sink.getvalue()


def _frames(audio: Audio, stream: Any, rate: int) -> Iterator[av.AudioFrame]:
    """`audio` as frames that the encoder of `stream` takes."""
    resampler = av.AudioResampler(stream.format.name, stream.layout.name, rate)
    source = at_rate(audio, rate) if rate != RATE else audio
    step = 1 << 14
    for at in range(0, len(source), step):
        packed = np.ascontiguousarray(source[at : at + step]).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=stream.layout.name)
        frame.sample_rate, frame.pts, frame.time_base = rate, at, Fraction(1, rate)
        yield from resampler.resample(frame)
    yield from resampler.resample(None)


def _add_video(out: Any) -> Any:
    video = out.add_stream("libx264", rate=5)
    video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
    video.codec_context.options = {"preset": "ultrafast"}
    return video


def _write_picture(out: Any, video: Any, seconds: float) -> None:
    for at in range(round(seconds * 5)):
        frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), at % 255, np.uint8), format="rgb24")
        out.mux(video.encode(frame))
    out.mux(video.encode(None))


def _add_cover(out: Any) -> av.Packet[Any]:
    with av.open(io.BytesIO(PNG), format="png_pipe") as source:
        image = out.add_stream_from_template(source.streams.video[0])
        image.disposition = av.stream.Disposition.attached_pic
        packet: Any = next(source.demux(source.streams.video[0]))
    packet.stream = image
    return packet


def live_webm(audio: Audio) -> bytes:
    """As a browser's recorder writes it: no duration, unknown sizes, clusters of a second."""
    options = {"live": "1", "cluster_time_limit": "1000"}
    return encode(audio, "webm", "libopus", 48_000, live=True, options=options)


# ---- one of each kind --------------------------------------------------------------------------------------------

Make = Callable[[Audio], bytes]

CONTAINERS: dict[str, Make] = {
    "wav": lambda x: sound(x),
    "rf64": lambda x: sound(x, "RF64"),
    "w64": lambda x: sound(x, "W64"),
    "aiff": lambda x: sound(x, "AIFF"),
    "au": lambda x: sound(x, "AU"),
    "caf": lambda x: sound(x, "CAF"),
    "flac": lambda x: sound(x, "FLAC"),
    "flac from a pipe": lambda x: encode(x, "flac", "flac", live=True),
    "mp3": lambda x: encode(x, "mp3", "libmp3lame"),
    "ogg vorbis": lambda x: sound(x, "OGG", "VORBIS"),
    "ogg opus": lambda x: encode(x, "ogg", "libopus", 48_000),
    "webm opus": lambda x: encode(x, "webm", "libopus", 48_000),
    "m4a aac": lambda x: encode(x, "mp4", "aac", 48_000),
    "m4a alac": lambda x: encode(x, "mp4", "alac"),
    "mp4 with a picture": lambda x: encode(x, "mp4", "aac", 48_000, picture=True),
    "mov with a picture": lambda x: encode(x, "mov", "aac", 48_000, picture=True),
    "fragmented mp4": lambda x: encode(
        x, "mp4", "aac", 48_000, live=True, options={"movflags": "frag_keyframe+empty_moov"}
    ),
    "aac adts": lambda x: encode(x, "adts", "aac", 48_000),
    "mpeg transport stream": lambda x: encode(x, "mpegts", "aac", 48_000),
    "wma": lambda x: encode(x, "asf", "wmav2", 44_100, bit_rate=64_000),
    "amr": lambda x: encode(x, "amr", "libopencore_amrnb", 8_000),
    "avi": lambda x: encode(x, "avi", "libmp3lame", 44_100),
    "matroska": lambda x: encode(x, "matroska", "flac"),
    "wavpack": lambda x: encode(x, "wv", "wavpack"),
}
