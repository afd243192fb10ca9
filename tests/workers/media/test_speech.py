"""Silero: where the sentence is, what is no speech, and its rules for spans on probabilities written down by hand."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from protocol.events import Progress, Speech
from protocol.jobs import DetectSpeech, Pcm, Span
from tests.speech import speak, timeline
from workers.media.speech import Silero, detect_steps, padded, spoken

RATE = 16_000
SECONDS = 12

Samples = npt.NDArray[np.int16]


@pytest.fixture(scope="module")
def silero() -> Silero:
    return Silero()


def stored(folder: Path, samples: Samples) -> Pcm:
    path = folder / "audio.pcm"
    path.write_bytes(samples.astype("<i2").tobytes())
    return Pcm(str(path), 0, len(samples))


def heard(silero: Silero, job: DetectSpeech) -> tuple[list[Progress], Speech]:
    steps, progress = detect_steps(job, silero), []
    while True:
        try:
            progress.append(next(steps))
        except StopIteration as end:
            return progress, end.value


def seconds(silero: Silero, folder: Path, samples: Samples) -> list[tuple[float, float]]:
    _, speech = heard(silero, DetectSpeech(stored(folder, samples)))
    return [(span.start / RATE, span.stop / RATE) for span in speech.spans]


def audible(samples: Samples) -> tuple[float, float]:
    """From the first to the last second in which a sentence is to be heard."""
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 300)
    return loud[0] / RATE, loud[-1] / RATE


def test_a_sentence_between_silences_is_found_within_a_tenth_of_a_second(silero: Silero, tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog."
    begins, ends = audible(speak(text)[0])
    spans = seconds(silero, tmp_path, timeline(3.0, text, 4.0))
    assert spans[0][0] == pytest.approx(3.0 + begins, abs=0.1)
    assert spans[-1][1] == pytest.approx(3.0 + ends, abs=0.1)


def test_sentences_far_apart_are_spans_of_their_own(silero: Silero, tmp_path: Path) -> None:
    first, second = "The quick brown fox jumps over the lazy dog.", "She sells sea shells by the sea shore."
    length = len(speak(first)[0]) / RATE
    spans = seconds(silero, tmp_path, timeline(1.0, first, 20.0, second, 1.0))
    gap = max(later[0] - earlier[1] for earlier, later in itertools.pairwise(spans))
    assert gap == pytest.approx(20.0 + length - audible(speak(first)[0])[1] + audible(speak(second)[0])[0], abs=0.2)
    assert spans[-1][1] <= 1.0 + length + 20.0 + len(speak(second)[0]) / RATE + 1.0


def test_silence_hum_noise_and_tones_are_no_speech(silero: Silero, tmp_path: Path) -> None:
    time = np.arange(SECONDS * RATE) / RATE
    noise = np.random.default_rng(1).standard_normal(len(time))
    sounds = {
        "zeros": np.zeros_like(time),
        "hum": 0.1 * np.sin(2 * np.pi * 50 * time) + 0.05 * np.sin(2 * np.pi * 150 * time),
        "noise at -50 dB": 10 ** (-50 / 20) * noise,
        "noise at -20 dB": 10 ** (-20 / 20) * noise,
        "a tone": 0.3 * np.sin(2 * np.pi * 440 * time),
        "clicks": np.where(np.arange(len(time)) % 8000 < 20, 0.5, 0.0),
    }
    found = {
        name: seconds(silero, tmp_path, np.round(np.clip(sound, -1, 1) * 32767).astype(np.int16))
        for name, sound in sounds.items()
    }
    assert [name for name, spans in found.items() if spans] == []


@pytest.mark.parametrize("samples", [1, 63, 511, 512, 513])
def test_a_recording_may_be_shorter_than_a_window(silero: Silero, tmp_path: Path, samples: int) -> None:
    assert seconds(silero, tmp_path, np.zeros(samples, np.int16)) == []


def test_the_span_of_the_job_counts_from_its_own_start(silero: Silero, tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog."
    whole = stored(tmp_path, timeline(60.0, text, 2.0))
    part = Pcm(whole.path, 58 * RATE, whole.stop)
    _, speech = heard(silero, DetectSpeech(part))
    assert speech.spans[0].start / RATE == pytest.approx(2.0 + audible(speak(text)[0])[0], abs=0.1)
    assert speech.spans[-1].stop <= part.stop - part.start
    assert heard(silero, DetectSpeech(Pcm(whole.path, 0, 59 * RATE)))[1].spans == ()


def test_it_goes_in_steps_of_ten_seconds_and_remembers_between_them(silero: Silero, tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog."
    # The sentence lies across the border between the first and the second step.
    samples = timeline(9.0, text, 10.0)
    progress, _ = heard(silero, DetectSpeech(stored(tmp_path, samples)))
    total = len(samples) / RATE
    assert progress == [Progress(9.984, total), Progress(19.968, total), Progress(total, total)]
    spans = seconds(silero, tmp_path, samples)
    begins, ends = audible(speak(text)[0])
    assert (spans[0][0], spans[-1][1]) == (pytest.approx(9.0 + begins, abs=0.1), pytest.approx(9.0 + ends, abs=0.1))


def test_one_recording_leaves_nothing_behind_for_the_next(silero: Silero, tmp_path: Path) -> None:
    samples = timeline(1.0, "She sells sea shells.", 1.0)
    first = seconds(silero, tmp_path, samples)
    seconds(silero, tmp_path, speak("Something else entirely.")[0])
    assert seconds(silero, tmp_path, samples) == first != []


def test_the_package_around_the_model_is_never_imported() -> None:
    code = (
        "import sys; from workers.media.speech import Silero; Silero(); "
        "print([name for name in ('silero_vad', 'torch') if name in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# ---- spans out of probabilities: windows of 512 samples ------------------------------------------------------------


def spans_of(
    probabilities: list[float], threshold: float = 0.5, min_speech: int = 0, samples: int = 0
) -> list[tuple[float, float]]:
    """In windows."""
    found = spoken(probabilities, samples or len(probabilities) * 512, threshold, min_speech)
    return [(span.start / 512, span.stop / 512) for span in found]


def test_speech_lasts_from_the_threshold_to_the_exit_threshold() -> None:
    assert spans_of([0.49, 0.5, 0.36, 0.35, 0.34, *[0.0] * 4]) == [(1, 4)]


def test_a_pause_of_under_a_tenth_of_a_second_splits_nothing() -> None:
    assert spans_of([0.9, 0.1, 0.1, 0.1, 0.9, *[0.0] * 5]) == [(0, 5)]
    assert spans_of([0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.9, *[0.0] * 5]) == [(0, 1), (6, 7)]


def test_what_lies_between_the_thresholds_ends_no_speech_and_begins_none() -> None:
    assert spans_of([0.4, 0.4, 0.9, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4]) == [(2, 9)]


def test_speech_at_the_end_lasts_to_the_last_sample() -> None:
    assert spoken([0.0, 0.9, 0.1], 1100, 0.5, 0) == [Span(512, 1100)]


def test_a_burst_must_be_longer_than_the_least_speech() -> None:
    assert spans_of([0.9] * 8 + [0.0] * 5, min_speech=8 * 512) == []
    assert spans_of([0.9] * 9 + [0.0] * 5, min_speech=8 * 512) == [(0, 9)]


def test_a_very_low_threshold_still_has_an_exit() -> None:
    assert spans_of([0.1, 0.011, *[0.009] * 5], threshold=0.05) == [(0, 2)]


def test_spans_are_padded_by_30_ms_and_share_a_shorter_silence() -> None:
    assert padded([Span(1000, 2000), Span(2500, 3000), Span(9000, 9900)], 10_000) == [
        Span(520, 2250),
        Span(2250, 3480),
        Span(8520, 10_000),
    ]
    assert padded([Span(100, 9000)], 10_000) == [Span(0, 9480)]
    assert padded([], 10_000) == []
