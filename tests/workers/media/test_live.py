"""A recording that grows is converted and heard as the whole one is, however it comes and whatever is forgotten."""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import DiskFull, InternalError, RequestCancelled, RequestTimeout, UndecodableAudio
from protocol.events import Followed, Progress
from protocol.jobs import DetectSpeech, Follow, Pcm, Raw, Run
from tests import audio_inputs as make
from tests.speech import timeline
from tests.workers.media.growing import MAX_DECODE_SECONDS, Follower, Journal, raw_bytes, run
from tests.workers.media.outcome import Outcome
from workers.media.live import JOB_SAMPLES, Kept, follow_steps
from workers.media.speech import MEMORY_BYTES, Silero, detect_steps, padded, spoken

Encoding = Literal["s16le", "s16be", "f32le"]
Floats = npt.NDArray[np.float32]

RATES = (8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000)
ENCODINGS: tuple[Encoding, ...] = ("s16le", "s16be", "f32le")


@pytest.fixture(scope="module")
def silero() -> Silero:
    return Silero()


@pytest.fixture
def follower(silero: Silero, tmp_path: Path) -> Follower:
    return Follower(Journal(tmp_path), silero)


def noise(seconds: float, raw: Raw, seed: int = 1) -> Floats:
    shape = (round(seconds * raw.rate), raw.channels)
    return (0.2 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def whole(samples: Floats, raw: Raw, folder: Path) -> npt.NDArray[np.int16]:
    """The recording uploaded at once."""
    subtype = "FLOAT" if raw.encoding == "f32le" else "PCM_16"
    native = raw_bytes(samples, Raw("f32le" if raw.encoding == "f32le" else "s16le", raw.rate, raw.channels))
    audio = np.frombuffer(native, "<f4" if raw.encoding == "f32le" else "<i2").reshape(samples.shape)
    Outcome(make.sound(audio, subtype=subtype, rate=raw.rate), folder)
    return np.fromfile(folder / "decoded", "<i2")


def chunks(samples: Floats, cuts: Sequence[int]) -> list[Floats]:
    return np.split(samples, sorted(min(cut, len(samples)) for cut in cuts))


# ---- the same samples --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    raw=st.builds(
        Raw,
        st.sampled_from(ENCODINGS),
        st.one_of(st.sampled_from(RATES), st.integers(8_000, 48_000)),
        st.integers(1, 2),
    ),
    frames=st.integers(2, 150_000),  # One frame of 48 kHz is no sample: refused as an upload, well as a dictation.
    cuts=st.lists(st.integers(0, 150_000), max_size=12),
    habits=st.randoms(use_true_random=False),
)
def test_samples_are_those_of_the_whole_however_it_was_cut_and_whatever_was_forgotten(
    silero: Silero, raw: Raw, frames: int, cuts: list[int], habits: random.Random
) -> None:
    samples = noise(1, raw)[np.arange(frames) % raw.rate]
    with tempfile.TemporaryDirectory() as folder:
        follower = Follower(Journal(Path(folder)), silero)
        for chunk in chunks(samples, cuts):
            follower.journal.append(raw, raw_bytes(chunk, raw))
            if habits.random() < 0.3:
                follower.restart()
            if habits.random() < 0.1:
                follower.begin_anew()
            if habits.random() < 0.7:
                follower.follow()
            if habits.random() < 0.3:
                run(follower.job(), silero, follower.kept)  # whose answer the service never got
        follower.follow(ended=True)
        assert follower.samples == raw.samples(frames)
        assert follower.heard.tolist() == whole(samples, raw, Path(folder)).tolist()
        assert len(follower.probabilities) == len(follower.levels) == -(-follower.samples // 512)


@settings(max_examples=300, deadline=None)
@given(rate=st.integers(8_000, 48_000), channels=st.integers(1, 2), frames=st.integers(0, 20_000))
def test_a_run_has_as_many_samples_as_its_format_says(silero: Silero, rate: int, channels: int, frames: int) -> None:
    raw = Raw("s16le", rate, channels)
    with tempfile.TemporaryDirectory() as folder:
        follower = Follower(Journal(Path(folder)), silero)
        follower.journal.append(raw, bytes(frames * raw.frame_bytes))
        follower.follow(ended=True)
        assert follower.samples == raw.samples(frames) == len(follower.heard)


@pytest.mark.parametrize(
    ("rate", "frames", "samples"), [(8_704, 34, 62), (8_960, 7, 12), (48_000, 3, 1), (48_000, 1, 0), (32_000, 1, 1)]
)
def test_halves_are_rounded_as_the_resampler_rounds_them(rate: int, frames: int, samples: int) -> None:
    assert Raw("f32le", rate, 1).samples(frames) == samples


def test_chunks_shorter_than_a_window_of_the_detector_are_followed(silero: Silero, tmp_path: Path) -> None:
    speech = timeline(0.5, "She sells sea shells by the sea shore.", 0.5).astype(np.float32)[:, None] / 32768
    raw = Raw("s16le", 16_000, 1)
    heard = []
    for size in (160, 321, 511, 512, 1_600, 16_000, len(speech)):
        folder = tmp_path / str(size)
        folder.mkdir()
        follower = Follower(Journal(folder), silero)
        for chunk in chunks(speech, range(size, len(speech), size)):
            follower.journal.append(raw, raw_bytes(chunk, raw))
            follower.follow()
        follower.follow(ended=True)
        heard.append((follower.heard.tolist(), follower.probabilities, follower.levels))
    assert all(each == heard[0] for each in heard)


def test_formats_and_files_follow_each_other(follower: Follower, sentence: make.Audio, tmp_path: Path) -> None:
    formats = [Raw("f32le", 48_000, 2), Raw("s16be", 8_000, 1), Raw("s16le", 44_100, 1)]
    flac, webm = make.sound(sentence, "FLAC"), make.live_webm(sentence)
    expected = []
    for number, raw in enumerate(formats):
        samples = noise(1.7, raw, number)
        for chunk in chunks(samples, [999, 40_000]):
            follower.journal.append(raw, raw_bytes(chunk, raw))
            follower.follow()
        expected.append(whole(samples, raw, tmp_path))
        follower.journal.attach((flac, webm, flac)[number])
        Outcome((flac, webm, flac)[number], tmp_path)
        expected.append(np.fromfile(tmp_path / "decoded", "<i2"))
    follower.follow(ended=True)
    assert follower.heard.tolist() == np.concatenate(expected).tolist()
    assert follower.base == follower.samples == len(follower.heard)


def test_bytes_without_headers_are_a_run_too(silero: Silero, tmp_path: Path) -> None:
    raw = Raw("f32le", 24_000, 1)
    samples = noise(1, raw)
    (tmp_path / "bytes").write_bytes(b"junk" + raw_bytes(samples, raw) + b"more")
    runs = (Run(str(tmp_path / "bytes"), 4, 4 + 24_000 * 4, raw),)
    run(Follow(runs, str(tmp_path / "pcm"), base=0, samples=0, ended=True), silero, Kept())
    assert np.fromfile(tmp_path / "pcm", "<i2").tolist() == whole(samples, raw, tmp_path).tolist()


def test_an_encoded_file_goes_on_in_the_next_job_and_after_a_restart(
    follower: Follower, sentence: make.Audio, tmp_path: Path
) -> None:
    data = make.encode(np.tile(sentence, 30), "ogg", "libopus", 48_000)
    Outcome(data, tmp_path)
    follower.journal.attach(data)
    assert follower.once().more
    assert follower.once().more
    follower.restart()
    follower.follow()
    assert (follower.first, follower.base) == (1, len(follower.heard))
    assert follower.heard.tolist() == np.fromfile(tmp_path / "decoded", "<i2").tolist()


def test_samples_beyond_those_announced_are_written_anew(follower: Follower, tmp_path: Path) -> None:
    raw = Raw("s16le", 48_000, 1)
    samples = noise(2, raw)
    follower.journal.append(raw, raw_bytes(samples, raw))
    with follower.pcm.open("wb") as file:
        file.write(b"\x55" * 1_000_000)  # a killed worker's
    follower.follow(ended=True)
    assert follower.heard.tolist() == whole(samples, raw, tmp_path).tolist()


# ---- what is heard -----------------------------------------------------------------------------------------------


def test_spans_of_speech_are_those_found_in_the_whole(follower: Follower, silero: Silero) -> None:
    speech = timeline(1.0, "The quick brown fox jumps over the lazy dog.", 2.0, "She sells sea shells.", 1.013)
    raw = Raw("s16le", 16_000, 1)
    for chunk in chunks(speech.astype(np.float32)[:, None] / 32768, range(1_600, len(speech), 1_600)):
        follower.journal.append(raw, raw_bytes(chunk, raw))
        follower.follow()
        follower.restart()
    follower.follow(ended=True)
    steps = detect_steps(DetectSpeech(Pcm(str(follower.pcm), 0, len(speech))), silero)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
    assert len(follower.probabilities) == -(-len(speech) // 512)
    spans = padded(spoken(follower.probabilities, len(speech), 0.5, 4_000), len(speech))
    assert tuple(spans) == found.spans
    assert len(spans) >= 2


def test_probabilities_are_exactly_those_of_the_whole(follower: Follower, silero: Silero, tmp_path: Path) -> None:
    speech = timeline(0.3, "The quick brown fox jumps over the lazy dog.", 0.3).astype(np.float32)[:, None] / 32768
    raw = Raw("f32le", 16_000, 1)
    for chunk in chunks(speech, range(1_234, len(speech), 1_234)):
        follower.journal.append(raw, raw_bytes(chunk, raw))
        follower.follow()
    follower.follow(ended=True)
    job = Follow((), str(follower.pcm), base=follower.samples, samples=follower.samples, ended=True)
    _, at_once = run(job, silero, Kept())
    assert list(at_once.probabilities) == follower.probabilities
    assert list(at_once.levels) == follower.levels
    assert at_once.memory == follower.memory
    assert max(follower.probabilities) > 0.9


def test_levels_are_the_root_mean_square_of_windows(follower: Follower) -> None:
    raw = Raw("f32le", 16_000, 1)
    square = np.concatenate([np.full(512, 0.5), np.full(512, -0.25), np.full(128, 0.5)]).astype(np.float32)
    follower.journal.append(raw, raw_bytes(square[:, None], raw))
    follower.follow()
    assert follower.levels == [0.5, 0.25]
    follower.follow(ended=True)
    assert follower.levels == [0.5, 0.25, 0.25]


def test_the_last_window_is_heard_once(follower: Follower) -> None:
    raw = Raw("f32le", 16_000, 1)
    follower.journal.append(raw, bytes(4 * 700))
    follower.follow(ended=True)
    assert len(follower.probabilities) == 2
    again = follower.once(ended=True)
    assert (again.probabilities, again.samples, again.more) == ((), 700, False)


def test_no_runs_at_the_end_hear_the_last_window(follower: Follower) -> None:
    raw = Raw("s16le", 16_000, 1)
    follower.journal.append(raw, bytes(2 * 700))
    follower.journal.attach(make.sound(np.zeros(20, np.float32)))
    follower.follow()
    assert (follower.first, len(follower.probabilities)) == (2, 1)
    follower.follow(ended=True)
    assert (follower.samples, len(follower.probabilities)) == (720, 2)


def test_no_audio_at_all_gives_nothing(follower: Follower) -> None:
    assert follower.once(ended=True) == Followed(0, 0, 0, (), (), bytes(MEMORY_BYTES), more=False)


def test_pcm_made_anew_is_not_heard_again_before_the_windows_that_were_heard(follower: Follower) -> None:
    raw = Raw("s16le", 16_000, 1)
    samples = noise(70, raw)
    follower.journal.append(raw, raw_bytes(samples, raw))
    follower.follow(ended=False)
    heard, levels = len(follower.probabilities), len(follower.levels)
    assert heard == 2187
    follower.begin_anew()
    assert follower.once().probabilities == ()
    follower.journal.append(raw, raw_bytes(samples[:512], raw))
    follower.follow()
    assert (len(follower.probabilities), len(follower.levels)) == (heard + 1, levels + 1)


# ---- shares, cancelling, forgetting ------------------------------------------------------------------------------


def test_a_job_takes_half_a_minute_and_says_that_there_is_more(follower: Follower) -> None:
    raw = Raw("s16le", 16_000, 1)
    follower.journal.append(raw, bytes(2 * 16_000 * 70))
    first = follower.once(ended=True)
    assert JOB_SAMPLES <= first.samples < JOB_SAMPLES + 16_000
    assert (first.more, first.runs, len(first.probabilities)) == (True, 0, JOB_SAMPLES // 512)
    follower.follow(ended=True)
    assert (follower.samples, len(follower.probabilities)) == (16_000 * 70, 2188)


def test_a_job_of_a_tenth_of_a_second_is_one_step(silero: Silero, follower: Follower) -> None:
    follower.journal.append(Raw("f32le", 16_000, 1), bytes(4 * 1_600))
    progress, followed = run(follower.job(), silero, Kept(), step_s=1.0)
    assert progress == []
    assert len(followed.probabilities) == 3


def test_a_replay_proves_life_and_is_cancelled_between_steps(
    silero: Silero, follower: Follower, tmp_path: Path
) -> None:
    raw = Raw("s16le", 48_000, 2)
    samples = noise(100, raw)
    follower.journal.append(raw, raw_bytes(samples, raw))
    follower.follow()
    follower.restart()
    follower.journal.append(raw, raw_bytes(samples[:4_800], raw))
    steps = follow_steps(follower.job(), silero, follower.kept, MAX_DECODE_SECONDS, step_s=0.0)
    assert isinstance(next(steps), Progress)
    assert next(steps).done < 10
    steps.close()
    follower.follow(ended=True)
    assert follower.heard.tolist() == whole(np.concatenate([samples, samples[:4_800]]), raw, tmp_path).tolist()


def test_what_was_kept_for_other_samples_is_not_used(silero: Silero, follower: Follower, tmp_path: Path) -> None:
    raw = Raw("s16le", 48_000, 1)
    samples = noise(3, raw)
    follower.journal.append(raw, raw_bytes(samples[:48_000], raw))
    follower.follow()
    before = follower.job()
    follower.journal.append(raw, raw_bytes(samples[48_000:], raw))
    run(follower.job(), silero, follower.kept)
    follower.samples = before.samples
    follower.follow(ended=True)
    assert follower.heard.tolist() == whole(samples, raw, tmp_path).tolist()


def test_the_run_unused_longest_is_forgotten_and_costs_only_time(silero: Silero, tmp_path: Path) -> None:
    raw = Raw("s16le", 44_100, 1)
    kept, samples = Kept(most=2), noise(1, raw)
    followers = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        followers.append(Follower(Journal(tmp_path / name), silero))
        followers[-1].kept = kept
    for chunk in chunks(samples, range(4_410, 44_100, 4_410)):
        for follower in followers:
            follower.journal.append(raw, raw_bytes(chunk, raw))
            follower.follow()
    expected = whole(samples, raw, tmp_path).tolist()
    for follower in followers:
        follower.follow(ended=True)
        assert follower.heard.tolist() == expected


# ---- failures ----------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_decoded_fails_its_job(silero: Silero, follower: Follower) -> None:
    follower.journal.attach(b"no audio at all")
    with pytest.raises(UndecodableAudio) as caught:
        follower.once()
    assert str(follower.pcm.parent) not in caught.value.message


def test_a_file_that_takes_too_long_is_a_timeout(silero: Silero, follower: Follower, sentence: make.Audio) -> None:
    follower.journal.attach(make.live_webm(sentence))
    with pytest.raises(RequestTimeout):
        next(follow_steps(follower.job(), silero, Kept(), max_decode_seconds=0.0))


def test_a_full_disk_is_said_so_and_the_job_may_be_done_again(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    raw = Raw("s16le", 48_000, 1)
    samples = noise(2, raw)
    follower.journal.append(raw, raw_bytes(samples, raw))
    room = 10_000

    def write(descriptor: int, data: memoryview, at: int) -> int:
        if at >= room:
            raise OSError(errno.ENOSPC, "no space left")
        return real(descriptor, data[: room - at], at)

    real = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write)
        with pytest.raises(DiskFull):
            follower.once()
    follower.follow(ended=True)
    assert follower.heard.tolist() == whole(samples, raw, tmp_path).tolist()


def test_a_journal_that_is_gone_ends_the_job_as_if_it_were_cancelled(silero: Silero, tmp_path: Path) -> None:
    for raw in (None, Raw("f32le", 48_000, 1)):
        job = Follow((Run(str(tmp_path / "gone"), 0, 400, raw),), str(tmp_path / "pcm"), base=0, samples=0)
        with pytest.raises(RequestCancelled):
            run(job, silero, Kept())


@pytest.mark.parametrize("change", ["cut", "wrong length", "half a frame"])
def test_a_journal_that_is_not_as_announced_is_an_internal_error(follower: Follower, change: str) -> None:
    raw = Raw("f32le", 48_000, 2)
    follower.journal.append(raw, bytes(804 if change == "half a frame" else 800))
    path = follower.pcm.parent / "audio"
    if change == "cut":
        os.truncate(path, 400)
    if change == "wrong length":
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with pytest.raises(InternalError):
        follower.once()


def test_pcm_that_is_shorter_than_announced_is_no_silence(follower: Follower) -> None:
    raw = Raw("s16le", 16_000, 1)
    follower.journal.append(raw, bytes(3_200))
    follower.samples = 1_000
    with pytest.raises(InternalError, match="shorter than announced"):
        follower.once()


def test_a_memory_of_another_length_is_an_internal_error(follower: Follower) -> None:
    follower.memory = b"123"
    with pytest.raises(InternalError, match="memory has 3 bytes instead of 1280"):
        follower.once()
