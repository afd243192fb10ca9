"""What becomes of each kind of file that clients send, good and bad. Expectations are literal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.errors import AudioTooLong, DiskFull, EmptyAudio, Failure, InternalError, RequestTimeout, UndecodableAudio
from protocol.events import Decoded, Progress
from protocol.settings import MediaSettings
from tests import audio_inputs as make
from tests.speech import speak
from workers.media.decode import decode_steps

SECONDS = 3.122
"""Of the sentence that all inputs are made of."""


@pytest.fixture(scope="module")
def sentence() -> make.Audio:
    spoken, _ = speak("The quick brown fox jumps over the lazy dog.")
    return spoken.astype(np.float32) / 32768


class Outcome:
    """A decoded file: the last event, the progress before it and the samples."""

    def __init__(self, data: bytes, folder: Path, settings: MediaSettings | None = None, name: str = "upload") -> None:
        source, self.target = folder / name, folder / "decoded"
        source.write_bytes(data)
        steps = decode_steps(str(source), str(self.target), settings or MediaSettings())
        self.progress: list[Progress] = []
        while True:
            try:
                self.progress.append(next(steps))
            except StopIteration as end:
                self.decoded: Decoded = end.value
                break
        self.samples = np.fromfile(self.target, "<i2").astype(np.float32) / 32768
        assert len(self.samples) == self.decoded.samples

    @property
    def seconds(self) -> float:
        return self.decoded.samples / 16_000


def similarity(heard: make.Audio, said: make.Audio) -> float:
    """Normalised correlation, 1 for the same wave, at the best shift: codecs delay."""
    size = 1 << (len(heard) + len(said)).bit_length()
    spectrum = np.fft.rfft(heard, size) * np.conj(np.fft.rfft(said, size))
    return float(np.max(np.abs(np.fft.irfft(spectrum, size))) / (np.linalg.norm(heard) * np.linalg.norm(said) + 1e-9))


def level_db(heard: make.Audio, said: make.Audio) -> float:
    """How loud `said` is within `heard`; 0 for full level. Both begin together."""
    return float(20 * np.log10(abs(np.dot(heard, said)) / np.dot(said, said) + 1e-9))


def refusal(data: bytes, folder: Path, settings: MediaSettings | None = None, name: str = "upload") -> Failure:
    with pytest.raises(Failure) as caught:
        Outcome(data, folder, settings, name)
    assert not (folder / "decoded").exists()
    return caught.value


# ---- good files --------------------------------------------------------------------------------------------------

READ_BY: dict[str, tuple[str, float]] = {
    # a container: (who reads it, least similarity)
    "wav": ("soundfile", 0.9999),
    "rf64": ("soundfile", 0.9999),
    "w64": ("soundfile", 0.9999),
    "aiff": ("soundfile", 0.9999),
    "au": ("soundfile", 0.9999),
    "caf": ("pyav", 0.9999),
    "flac": ("pyav", 0.9999),
    "flac from a pipe": ("pyav", 0.9999),
    "mp3": ("pyav", 0.98),
    "ogg vorbis": ("pyav", 0.98),
    "ogg opus": ("pyav", 0.98),
    "webm opus": ("pyav", 0.98),
    "m4a aac": ("pyav", 0.98),
    "m4a alac": ("pyav", 0.9999),
    "mp4 with a picture": ("pyav", 0.98),
    "mov with a picture": ("pyav", 0.98),
    "fragmented mp4": ("pyav", 0.98),
    "aac adts": ("pyav", 0.98),
    "mpeg transport stream": ("pyav", 0.98),
    "wma": ("pyav", 0.95),
    "amr": ("pyav", 0.7),
    "avi": ("pyav", 0.98),
    "matroska": ("pyav", 0.9999),
    "wavpack": ("pyav", 0.98),
}


@pytest.mark.parametrize("kind", make.CONTAINERS)
def test_a_container_gives_all_of_its_sound(kind: str, sentence: make.Audio, tmp_path: Path) -> None:
    decoder, likeness = READ_BY[kind]
    heard = Outcome(make.CONTAINERS[kind](sentence), tmp_path)
    assert heard.decoded.decoder == decoder
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)
    assert similarity(heard.samples, sentence) > likeness
    assert np.linalg.norm(heard.samples) == pytest.approx(np.linalg.norm(sentence), rel=0.15)


def test_16_khz_mono_pcm_passes_unchanged(sentence: make.Audio, tmp_path: Path) -> None:
    Outcome(make.riff(make.s16le(sentence)), tmp_path)
    assert (tmp_path / "decoded").read_bytes() == make.s16le(sentence)


@pytest.mark.parametrize("name", ["audio.wav", "talk.mp3", "CLIP.WEBM", "samples.raw", "noext", "list.m3u8"])
@pytest.mark.parametrize("kind", ["wav", "mp3", "webm opus", "m4a aac"])
def test_the_name_of_a_file_has_no_say(kind: str, name: str, sentence: make.Audio, tmp_path: Path) -> None:
    data = make.CONTAINERS[kind](sentence)
    assert np.array_equal(Outcome(data, tmp_path, name=name).samples, Outcome(data, tmp_path).samples)


def live_webm(sentence: make.Audio) -> bytes:
    options = {"live": "1", "cluster_time_limit": "1000"}
    return make.encode(sentence, "webm", "libopus", 48_000, live=True, options=options)


def test_a_browsers_live_webm_without_duration_is_whole(sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(live_webm(sentence), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)
    assert similarity(heard.samples, sentence) > 0.98
    assert {step.total for step in heard.progress} == {0.0}


def test_a_live_webm_cut_at_70_percent_gives_what_is_there(sentence: make.Audio, tmp_path: Path) -> None:
    data = live_webm(sentence)
    heard = Outcome(data[: int(len(data) * 0.7)], tmp_path)
    assert heard.seconds == pytest.approx(0.7 * SECONDS, abs=0.2)
    assert similarity(heard.samples, sentence[: len(heard.samples)]) > 0.98


def test_an_ogg_from_a_pipe_is_whole(sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.encode(sentence, "ogg", "libopus", 48_000, live=True), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)


def test_an_m4a_with_its_index_at_the_end_is_whole(sentence: make.Audio, tmp_path: Path) -> None:
    long = np.tile(sentence, 6)
    data = make.encode(np.stack([long, long], 1), "mp4", "aac", 48_000, bit_rate=256_000)
    assert data.index(b"moov") > data.index(b"mdat")
    heard = Outcome(data, tmp_path)
    assert heard.seconds == pytest.approx(6 * SECONDS, abs=0.1)
    assert similarity(heard.samples, long) > 0.98


def test_a_chained_ogg_goes_on_after_its_first_stream(sentence: make.Audio, tmp_path: Path) -> None:
    first = make.encode(sentence, "ogg", "libopus", 48_000, options={"serial_offset": "1"})
    second = make.encode(sentence, "ogg", "libopus", 48_000, options={"serial_offset": "2"})
    assert Outcome(first + second, tmp_path).seconds == pytest.approx(2 * SECONDS, abs=0.1)


# ---- WAV headers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("riff_size", "data_size"),
    [
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x7FFFFFFF, 0x7FFFFFFF - 36),
        (2_000_000_036, 2_000_000_000),
        (0, 0xFFFFFFFF),
        (0, 0),
        (36, 0),
    ],
)
def test_placeholder_sizes_of_a_streamed_wav_are_read_to_the_end_of_the_file(
    riff_size: int, data_size: int, sentence: make.Audio, tmp_path: Path
) -> None:
    data = make.riff(make.s16le(sentence), riff_size=riff_size, data_size=data_size)
    heard = Outcome(data, tmp_path, MediaSettings(max_audio_seconds=60))
    assert np.array_equal(heard.samples, np.frombuffer(make.s16le(sentence), "<i2").astype(np.float32) / 32768)


@pytest.mark.parametrize(
    ("subtype", "likeness"),
    [
        ("PCM_U8", 0.995),
        ("PCM_24", 0.9999),
        ("PCM_32", 0.9999),
        ("FLOAT", 0.9999),
        ("DOUBLE", 0.9999),
        ("ULAW", 0.995),
        ("ALAW", 0.995),
        ("IMA_ADPCM", 0.98),
        ("MS_ADPCM", 0.98),
        ("GSM610", 0.8),
    ],
)
def test_a_sample_format_is_read_as_what_it_is(
    subtype: str, likeness: float, sentence: make.Audio, tmp_path: Path
) -> None:
    heard = Outcome(make.sound(sentence, subtype=subtype), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)
    assert similarity(heard.samples, sentence) > likeness


def test_wave_extensible_with_24_bits_is_read(sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.extensible_24(sentence), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.01)
    assert similarity(heard.samples, sentence) > 0.9999


def test_mp3_within_a_wav_is_left_to_ffmpeg(sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.encode(sentence, "wav", "libmp3lame"), tmp_path)
    assert heard.decoded.decoder == "pyav"
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)
    assert similarity(heard.samples, sentence) > 0.98


def test_64_bit_integers_are_read_though_libsndfile_has_none(sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.s64_wav(sentence), tmp_path)
    assert heard.decoded.decoder == "pyav"
    assert similarity(heard.samples, sentence) > 0.9999


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 32_000, 44_100, 48_000, 96_000, 192_000])
def test_a_rate_changes_neither_length_nor_sound(rate: int, sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(make.sound(make.at_rate(sentence, rate), rate=rate), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.01)
    assert similarity(heard.samples, sentence) > (0.97 if rate < 16_000 else 0.999)


def test_nan_and_infinite_samples_become_silence(sentence: make.Audio, tmp_path: Path) -> None:
    broken = sentence.copy()
    broken[1000:1100], broken[2000:2100], broken[3000:3100] = np.nan, np.inf, -np.inf
    heard = Outcome(make.sound(broken, subtype="FLOAT"), tmp_path)
    assert not np.any(heard.samples[[1050, 2050, 3050]])
    assert similarity(heard.samples[4000:], sentence[4000:]) > 0.9999


# ---- channels ----------------------------------------------------------------------------------------------------


def hum(samples: int, level: float) -> make.Audio:
    at = np.arange(samples) / 16_000
    return (level * (np.sin(2 * np.pi * 50 * at) + 0.4 * np.sin(2 * np.pi * 150 * at))).astype(np.float32)


@pytest.mark.parametrize(
    ("channels", "speaking"), [(2, 0), (2, 1), (6, 2), (6, 4), (8, 7)], ids=lambda number: str(number)
)
def test_speech_in_one_channel_alone_keeps_its_level(
    channels: int, speaking: int, sentence: make.Audio, tmp_path: Path
) -> None:
    audio = np.zeros((len(sentence), channels), np.float32)
    audio[:, speaking] = sentence
    heard = Outcome(make.sound(audio), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.01)
    assert similarity(heard.samples, sentence) > 0.999
    assert level_db(heard.samples, sentence) == pytest.approx(0, abs=0.5)


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (1, -1, 1, -1, 1, -1)], ids=str)
def test_the_same_speech_in_all_channels_neither_cancels_nor_clips(
    signs: tuple[int, ...], sentence: make.Audio, tmp_path: Path
) -> None:
    audio = sentence[:, None] * np.array(signs, np.float32)
    heard = Outcome(make.sound(audio), tmp_path)
    assert similarity(heard.samples, sentence) > 0.999
    assert level_db(heard.samples, sentence) == pytest.approx(0, abs=0.5)


def test_quiet_speech_is_heard_beside_a_loud_hum(sentence: make.Audio, tmp_path: Path) -> None:
    quiet = 0.1 * sentence
    heard = Outcome(make.sound(np.stack([hum(len(quiet), 0.5), quiet], 1), subtype="FLOAT"), tmp_path)
    assert level_db(heard.samples, quiet) == pytest.approx(0, abs=1)
    assert similarity(heard.samples, quiet) > 0.9


def test_quiet_speech_is_heard_beside_noise(sentence: make.Audio, tmp_path: Path) -> None:
    quiet = 0.3 * sentence
    noise = np.random.default_rng(1).standard_normal(len(quiet)).astype(np.float32) * 10 ** (-30 / 20)
    heard = Outcome(make.sound(np.stack([noise, quiet], 1)), tmp_path)
    assert level_db(heard.samples, quiet) == pytest.approx(0, abs=1)
    assert similarity(heard.samples, quiet) > 0.99


def test_opposite_phase_speech_survives_a_hum_that_is_in_phase(sentence: make.Audio, tmp_path: Path) -> None:
    noise, quiet = hum(len(sentence), 0.3), 0.3 * sentence
    heard = Outcome(make.sound(np.stack([noise + quiet, noise - quiet], 1)), tmp_path)
    assert similarity(heard.samples, quiet) > 0.99


def test_two_voices_in_two_channels_are_both_heard(tmp_path: Path) -> None:
    texts = ("The quick brown fox jumps over the lazy dog.", "Nine small boats came home before the storm.")
    first, second = (speak(text)[0].astype(np.float32) / 65536 for text in texts)
    length = min(len(first), len(second))
    heard = Outcome(make.sound(np.stack([first[:length], second[:length]], 1)), tmp_path)
    for voice in (first[:length], second[:length]):
        assert level_db(heard.samples, voice) == pytest.approx(0, abs=1.5)


def test_the_mix_does_not_depend_on_how_the_file_is_packed(sentence: make.Audio, tmp_path: Path) -> None:
    audio = np.rint(32768 * np.stack([0.5 * sentence, np.roll(0.3 * sentence, 4000)], 1)).astype(np.int16)
    as_flac, as_wav = Outcome(make.sound(audio, "FLAC"), tmp_path), Outcome(make.sound(audio), tmp_path)
    assert as_flac.decoded.decoder != as_wav.decoded.decoder
    assert np.array_equal(as_flac.samples, as_wav.samples)


# ---- MP3 in the wild ---------------------------------------------------------------------------------------------


def bare_mp3(sentence: make.Audio) -> bytes:
    """Variable bit rate, no Xing header, no tags."""
    return make.encode(
        sentence,
        "mp3",
        "libmp3lame",
        options={"write_xing": "0", "id3v2_version": "0"},
        codec_options={"flags": "+qscale", "global_quality": "590"},
    )


def padded_tag(size: int) -> bytes:
    return b"ID3\x03\0\0" + bytes((size >> shift) & 127 for shift in (21, 14, 7, 0)) + bytes(size)


MP3S: dict[str, make.Make] = {
    "with a cover": lambda x: make.encode(x, "mp3", "libmp3lame", cover=True, options={"id3v2_version": "3"}),
    "without Xing": bare_mp3,
    "with 300 KB of tag padding": lambda x: padded_tag(300_000) + bare_mp3(x),
    "with two tags": lambda x: padded_tag(1_000) + padded_tag(2_000) + bare_mp3(x),
    "with junk first": lambda x: np.random.default_rng(2).bytes(5_000).replace(b"\xff", b"\0") + bare_mp3(x),
    "with a tag at the end": lambda x: bare_mp3(x) + b"TAG" + bytes(125),
}


@pytest.mark.parametrize("kind", MP3S)
def test_an_mp3_of_any_upbringing_is_whole(kind: str, sentence: make.Audio, tmp_path: Path) -> None:
    heard = Outcome(MP3S[kind](sentence), tmp_path)
    assert heard.seconds == pytest.approx(SECONDS, abs=0.1)
    assert similarity(heard.samples, sentence) > 0.95


# ---- damaged files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "ogg opus", "aac adts", "fragmented mp4"])
def test_a_truncated_file_gives_what_is_there(kind: str, sentence: make.Audio, tmp_path: Path) -> None:
    data = make.CONTAINERS[kind](np.tile(sentence, 4))
    heard = Outcome(data[: len(data) * 6 // 10], tmp_path)
    assert 0.4 * 4 * SECONDS < heard.seconds < 0.75 * 4 * SECONDS
    assert similarity(heard.samples, np.tile(sentence, 4)[: len(heard.samples)]) > 0.95


@pytest.mark.parametrize("kind", ["flac", "mp3", "aac adts"])
def test_a_hole_in_a_file_costs_only_what_it_hit(kind: str, sentence: make.Audio, tmp_path: Path) -> None:
    data = bytearray(make.CONTAINERS[kind](np.tile(sentence, 4)))
    middle = len(data) // 2
    data[middle : middle + 300] = np.random.default_rng(5).bytes(300)
    assert Outcome(bytes(data), tmp_path).seconds > 0.8 * 4 * SECONDS


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


@pytest.mark.parametrize(
    "form",
    [
        make.wav_format(rate=0),
        make.wav_format(rate=1),
        make.wav_format(rate=10_000_000),
        make.wav_format(channels=0),
        make.wav_format(channels=1000),
        make.wav_format(channels=65_535),
        make.wav_format(tag=0x55),
        make.wav_format(tag=0x1234),
    ],
    ids=["0 Hz", "1 Hz", "10 MHz", "no channel", "1000 channels", "65535 channels", "mp3 within", "unknown codec"],
)
def test_an_absurd_wav_header_is_undecodable(form: bytes, sentence: make.Audio, tmp_path: Path) -> None:
    assert isinstance(refusal(make.riff(make.s16le(sentence), form), tmp_path), UndecodableAudio)


# ---- limits ------------------------------------------------------------------------------------------------------


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
    assert isinstance(refusal(live_webm(sentence), tmp_path, MediaSettings(max_audio_seconds=3.0)), AudioTooLong)


def test_a_recording_of_just_the_limit_is_accepted(tmp_path: Path) -> None:
    audio = make.sound(np.full(16_000, 0.1, np.float32))
    assert Outcome(audio, tmp_path, MediaSettings(max_audio_seconds=1.0)).decoded.samples == 16_000


def test_a_flac_that_claims_a_year_is_read_by_what_it_holds(sentence: make.Audio, tmp_path: Path) -> None:
    data = bytearray(make.sound(sentence, "FLAC"))
    data[21] |= 0x0F  # STREAMINFO's count of samples, 36 bits
    data[22:26] = b"\xff" * 4
    assert Outcome(bytes(data), tmp_path).seconds == pytest.approx(SECONDS, abs=0.1)


def test_decoding_that_takes_too_long_is_a_timeout(sentence: make.Audio, tmp_path: Path) -> None:
    for write in (make.sound, live_webm):
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
