"""What is refused, and the limits of length, time and space."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.errors import AudioTooLong, DiskFull, EmptyAudio, InternalError, RequestTimeout, UndecodableAudio
from protocol.events import Progress
from protocol.settings import MediaSettings
from tests import audio_inputs as make
from tests.workers.media.outcome import SECONDS, Outcome, refusal
from workers.media.decode import decode_steps

NOT_AUDIO: dict[str, bytes] = {
    "random bytes": np.random.default_rng(7).bytes(65_536),
    "one byte": b"O",
    "a picture": make.PNG,
    "a web page": b"<html><body>404</body></html>\n",
    "a text": b"this is not audio\n",
    "twelve bytes of RIFF": b"RIFF\x24\0\0\0WAVE",
    "a playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
    "a concat script": b"ffconcat version 1.0\nfile /etc/hostname\n",
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "an mp4 without its index": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom\0\0\0\x00mdat" + bytes(1_000),
}


@pytest.mark.parametrize("kind", NOT_AUDIO)
def test_what_is_no_audio_is_undecodable(kind: str, tmp_path: Path) -> None:
    failure = refusal(NOT_AUDIO[kind], tmp_path)
    assert isinstance(failure, UndecodableAudio)
    assert failure.param == "file"
    assert str(tmp_path) not in failure.message


def test_a_video_without_sound_is_undecodable(tmp_path: Path) -> None:
    failure = refusal(make.video_only(), tmp_path)
    assert isinstance(failure, UndecodableAudio)
    assert failure.message == "the file cannot be decoded as audio: it has no audio track"


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_never_taken_for_a_codec(seed: int, tmp_path: Path) -> None:
    assert isinstance(refusal(np.random.default_rng(seed).bytes(300_000), tmp_path), UndecodableAudio)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("raw_16k.wav", make.s16le),
        ("raw_8k.pcm", lambda x: make.s16le(make.at_rate(x, 8_000))),
        ("raw_f32", lambda x: x.tobytes()),
        ("raw_u8.raw", lambda x: (x * 127 + 128).astype(np.uint8).tobytes()),
    ],
)
def test_pcm_without_a_header_is_refused_for_want_of_it(
    name: str, write: make.Make, sentence: make.Audio, tmp_path: Path
) -> None:
    failure = refusal(write(sentence), tmp_path, name=name)
    assert isinstance(failure, UndecodableAudio)
    assert "header" in failure.message
    assert "raw PCM" in failure.message


@pytest.mark.parametrize("data", [b"", make.riff(b"")], ids=["no bytes", "a header alone"])
def test_a_file_without_samples_is_empty_audio(data: bytes, tmp_path: Path) -> None:
    failure = refusal(data, tmp_path)
    assert isinstance(failure, EmptyAudio)
    assert failure.param == "file"


def test_a_header_that_says_too_long_is_refused_before_decoding(sentence: make.Audio, tmp_path: Path) -> None:
    source, target = tmp_path / "upload", tmp_path / "decoded"
    source.write_bytes(make.sound(sentence))
    steps = decode_steps(str(source), str(target), MediaSettings(max_audio_seconds=3.0))
    with pytest.raises(AudioTooLong) as caught:
        next(steps)
    assert caught.value.message == "the recording is longer than 3 seconds"
    assert caught.value.param == "file"
    assert not target.exists()


def test_a_file_without_duration_is_refused_when_it_has_become_too_long(sentence: make.Audio, tmp_path: Path) -> None:
    assert isinstance(refusal(make.live_webm(sentence), tmp_path, MediaSettings(max_audio_seconds=3.0)), AudioTooLong)


def test_a_recording_of_just_the_limit_is_accepted(tmp_path: Path) -> None:
    audio = make.sound(np.full(16_000, 0.1, np.float32))
    assert Outcome(audio, tmp_path, MediaSettings(max_audio_seconds=1.0)).decoded.samples == 16_000


def test_a_flac_that_claims_a_year_is_read_by_what_it_holds(sentence: make.Audio, tmp_path: Path) -> None:
    data = bytearray(make.sound(sentence, "FLAC"))
    data[21] |= 0x0F  # STREAMINFO's count of samples, 36 bits
    data[22:26] = b"\xff" * 4
    assert Outcome(bytes(data), tmp_path).seconds == pytest.approx(SECONDS, abs=0.1)


def test_decoding_that_takes_too_long_is_a_timeout(sentence: make.Audio, tmp_path: Path) -> None:
    for write in (make.sound, make.live_webm):
        failure = refusal(write(sentence), tmp_path, MediaSettings(max_decode_seconds=0.0))
        assert isinstance(failure, RequestTimeout)


def test_a_full_disk_is_the_services_trouble_and_leaves_no_file(sentence: make.Audio, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "decoded").symlink_to("/dev/full")
    assert isinstance(refusal(make.sound(sentence), tmp_path), DiskFull)


def test_a_source_that_is_gone_is_no_fault_of_the_client(tmp_path: Path) -> None:
    with pytest.raises(InternalError):
        next(decode_steps(str(tmp_path / "gone"), str(tmp_path / "decoded"), MediaSettings()))


def test_closing_the_steps_removes_what_was_written(sentence: make.Audio, tmp_path: Path) -> None:
    source, target = tmp_path / "upload", tmp_path / "decoded"
    source.write_bytes(make.sound(np.tile(sentence, 10)))
    steps = decode_steps(str(source), str(target), MediaSettings())
    assert next(steps) == Progress(0.0, pytest.approx(31.2, abs=0.1))
    assert next(steps).done == 10.0
    assert target.exists()
    steps.close()
    assert not target.exists()
