"""What a Content-Type says a chunk is, and bytes that cannot be it."""

from __future__ import annotations

import math
import random
import struct
import time

import pytest

from protocol.errors import EmptyAudio, InvalidValue
from protocol.jobs import Raw
from service.dictation.chunk import check, raw_of

FLOAT = Raw("f32le", 16_000, 1)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@pytest.mark.parametrize(
    "content_type",
    [
        "audio/pcm",
        "audio/l32",
        "audio/L32",
        "AUDIO/PCM",
        " audio/pcm ",
        "audio/pcm;",
        "audio/pcm ; ",
        "audio/float32",
        "audio/x-float32",
        "application/x-Float32",
        "audio/vnd.something.float32+raw",
        "application/octet-stream;format=float32",
        "audio/raw; encoding=FLOAT32",
        "audio/pcm;encoding=float32",
        "audio/pcm;charset=utf-8",
        "audio/pcm;encoding=f32le;rate=16000;channels=1",
    ],
)
def test_raw_audio_is_float32_at_16_khz_in_mono_unless_it_says_otherwise(content_type: str) -> None:
    assert raw_of(content_type) == FLOAT


@pytest.mark.parametrize(
    ("content_type", "raw"),
    [
        ("audio/pcm;encoding=s16le", Raw("s16le", 16_000, 1)),
        ("audio/pcm;encoding=s16be;rate=44100;channels=2", Raw("s16be", 44_100, 2)),
        ("audio/pcm;rate=8000", Raw("f32le", 8_000, 1)),
        ("audio/pcm;rate=48000", Raw("f32le", 48_000, 1)),
        ("audio/PCM ; Encoding = S16LE ;RATE= 8000; Channels=2", Raw("s16le", 8_000, 2)),
        ('audio/pcm;encoding="s16le";rate="24000"', Raw("s16le", 24_000, 1)),
        ('audio/pcm;note="a;rate=1\\"";rate=11025', Raw("f32le", 11_025, 1)),
        ("audio/float32;rate=22050;channels=2", Raw("f32le", 22_050, 2)),
        ("audio/l32;channels=2", Raw("f32le", 16_000, 2)),
        ("audio/l16", Raw("s16be", 16_000, 1)),
        ("audio/L16;rate=8000", Raw("s16be", 8_000, 1)),
        ("audio/l16; rate=44100; channels=2; emphasis=none", Raw("s16be", 44_100, 2)),
        ("audio/l16;encoding=s16be", Raw("s16be", 16_000, 1)),
    ],
)
def test_parameters_say_what_it_is_in_any_case_and_quoting(content_type: str, raw: Raw) -> None:
    assert raw_of(content_type) == raw


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "audio/wav",
        "audio/webm;codecs=opus",
        "audio/wav;rate=nonsense;;",
        "audio/wav;codec=float32",
        "application/octet-stream",
        "video/mp4",
        "x",
        ";rate=1",
    ],
)
def test_anything_else_is_a_complete_file_whose_parameters_mean_nothing(content_type: str | None) -> None:
    assert raw_of(content_type) is None


@pytest.mark.parametrize(
    ("parameter", "param", "message"),
    [
        (
            "encoding=s24le",
            "encoding",
            "encoding 's24le' in Content-Type is not allowed; it is one of s16le, s16be, f32le",
        ),
        ("encoding=", "encoding", "encoding ''"),
        ("rate=7999", "rate", "rate '7999' in Content-Type is not allowed; it is an integer from 8000 to 48000"),
        ("rate=48001", "rate", "rate '48001'"),
        ("rate=16000.0", "rate", "rate '16000.0'"),
        ("rate=-16000", "rate", "rate '-16000'"),
        ("rate=1e4", "rate", "rate '1e4'"),
        ("rate=" + "9" * 5000, "rate", "rate '" + "9" * 100 + "' in"),
        ("rate=\u0661\u0666\u0660\u0660\u0660", "rate", "in Content-Type is not allowed"),
        ("channels=0", "channels", "channels '0' in Content-Type is not allowed; it is an integer from 1 to 2"),
        ("channels=3", "channels", "channels '3'"),
        ("channels=stereo", "channels", "channels 'stereo'"),
        ("rate=16000;rate=8000", "rate", "Content-Type gives rate twice"),
        ("rate=16000;Rate=16000", "rate", "Content-Type gives rate twice"),
        ("s16le", None, "'s16le' in Content-Type is no parameter"),
        ("rate", None, "'rate' in Content-Type is no parameter"),
        ('rate="16000', None, "in Content-Type is no parameter"),
        ('rate="16000"0', None, "in Content-Type is no parameter"),
        ("=16000", None, "in Content-Type is no parameter"),
    ],
)
def test_a_wrong_parameter_of_raw_audio_is_refused_by_its_name(parameter: str, param: str | None, message: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        raw_of(f"audio/pcm;{parameter}")
    assert refused.value.param == param
    assert message in refused.value.message


def test_l16_is_big_endian_int16_and_nothing_else() -> None:
    with pytest.raises(
        InvalidValue, match="encoding 's16le' in Content-Type is not allowed; it is s16be for audio/l16"
    ):
        raw_of("audio/l16;encoding=s16le")


def test_a_long_header_of_separators_takes_no_time() -> None:
    began = time.process_time()
    for text in (";" * 60_000, "; " * 30_000, ";" + " " * 60_000, ';a="' + "\\" * 60_000, ";" + "a" * 60_000):
        try:
            raw_of("audio/pcm" + text)
        except InvalidValue:
            continue
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("raw", "size", "frame"),
    [
        (FLOAT, 1, "4 bytes of a frame (f32le, channels=1)"),
        (FLOAT, 4098, "4 bytes of a frame (f32le, channels=1)"),
        (Raw("f32le", 48_000, 2), 12, "8 bytes of a frame (f32le, channels=2)"),
        (Raw("s16le"), 3, "2 bytes of a frame (s16le, channels=1)"),
        (Raw("s16be", 8_000, 2), 6, "4 bytes of a frame (s16be, channels=2)"),
    ],
)
def test_a_length_that_is_no_multiple_of_the_frame_is_refused_saying_what_to_name(
    raw: Raw, size: int, frame: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        check(raw, bytes(size))
    assert f"{size} bytes are no multiple of the {frame}" in refused.value.message
    assert "audio/pcm;encoding=s16le;rate=16000;channels=1" in refused.value.message


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 16.001, -16.001, 32767.0, 1e30])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_floats_that_are_no_number_or_far_too_loud_are_refused_saying_what_to_name(wrong: float, place: int) -> None:
    values = [0.25] * 1000
    values[place] = wrong
    with pytest.raises(InvalidValue, match=r"read as f32le.*encoding=s16le"):
        check(FLOAT, floats(*values))


def test_int16_speech_that_was_called_float32_is_refused() -> None:
    drawn = random.Random(0)
    quiet = struct.pack("<320h", *(drawn.randint(-300, 300) for _ in range(320)))
    with pytest.raises(InvalidValue, match="encoding=s16le"):
        check(raw_of("audio/pcm"), quiet)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, 7.99, 8.0, 9.5, -15.99, 16.0, -16.0, 1e-30, 1e-44])
def test_loud_and_tiny_floats_are_taken(value: float) -> None:
    check(FLOAT, floats(value, 0.5, value))


def test_int16_may_hold_anything() -> None:
    check(Raw("s16le"), bytes(range(256)))


def test_no_samples_at_all_are_taken_but_an_empty_file_is_not() -> None:
    check(FLOAT, b"")
    with pytest.raises(EmptyAudio):
        check(None, b"")
    check(None, b"RIFF")


def test_the_largest_chunk_is_checked_within_a_moment() -> None:
    data = floats(*([0.1, -0.1] * 1024)) * 512
    assert len(data) == 4 << 20
    began = time.process_time()
    check(FLOAT, data)
    assert time.process_time() - began < 0.5
