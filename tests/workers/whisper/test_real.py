"""The starter model on recordings: the reference's text, segments and word times; the same in a batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.jobs import Pcm
from protocol.settings import MediaSettings
from tests.workers.whisper.driver import job, run, segments, text
from workers import blas
from workers.media.decode import decode_steps

SPEECH = Path(__file__).parents[3] / ".." / "shared" / "speech"
CLIPS = (
    "ls-367-130732-0000",
    "pv-ja",
    "nst-sv-03",
    "pv-it",
)
SILENCE = 10.0
"""Seconds of nothing but zeros, hum or noise."""

pytestmark = [
    pytest.mark.model,
    pytest.mark.shared,
    pytest.mark.skipif(not SPEECH.is_dir(), reason="there are no recordings beside the checkout"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def model(fast_blas: blas.Blas, model_data_dir: Path, kernel_dir: Path) -> Any:
    import mlx.core as mx

    from workers.whisper.load import load
    from workers.whisper.model import choose

    loaded = load("whisper-base", data_dir=model_data_dir, offline=True, report=lambda loading: None, dtype=mx.float32)
    return choose(loaded.whisper, folder=kernel_dir)


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pcm]:
    """A clip of the manifest as the media worker decodes it."""
    rows = [json.loads(line) for line in (SPEECH / "manifest.jsonl").read_text("utf-8").splitlines()]
    files = {row["id"]: SPEECH / row["file"] for row in rows}
    folder = tmp_path_factory.mktemp("spool")

    def decode(clip: str) -> Pcm:
        target = folder / clip
        if not target.exists():
            list(decode_steps(str(files[clip]), str(target), MediaSettings()))
        return Pcm(str(target), 0, target.stat().st_size // 2)

    return decode


def test_texts_and_words_are_the_references_also_in_a_batch(model: Any, spool: Callable[[str], Pcm]) -> None:
    from tests.workers.whisper.reference import transcribe

    together = run(model, [job(spool(clip), words=True, temperature=(0.0,)) for clip in CLIPS])
    off: list[float] = []
    for clip, events in zip(CLIPS, together, strict=True):
        samples = np.fromfile(spool(clip).path, "<i2").astype(np.float32) / 32768
        expected = transcribe(model, samples, word_timestamps=True, temperature=0.0)
        assert events[-1].language == expected["language"], clip
        assert text(events) == expected["text"], clip
        mine = [word for each in segments(events) for word in each.words or ()]
        theirs = [word for each in expected["segments"] for word in each["words"]]
        assert [word.word for word in mine] == [word["word"] for word in theirs]
        off += [abs(a.start - b["start"]) for a, b in zip(mine, theirs, strict=True)]
    assert np.median(off) <= 0.04
    assert np.quantile(off, 0.95) <= 0.2


def test_samples_and_beams_are_the_same_alone_and_together(model: Any, spool: Callable[[str], Pcm]) -> None:
    jobs = [
        job(spool("pv-it"), temperature=(0.6,), best_of=3, language="it"),
        job(spool("pv-de"), temperature=(0.0,), beam_size=5, language="de"),
        job(spool("nst-sv-03"), temperature=(0.4,), best_of=2, language="sv", audio_ctx="auto"),
        job(spool("ls-367-130732-0000"), language="en", urgent=True),
    ]
    alone = [text(run(model, [each])[0]) for each in jobs]
    assert [text(events) for events in run(model, jobs[::-1])][::-1] == alone


def test_ten_seconds_of_silence_are_no_text_in_the_references_language(model: Any, spool: Callable[[str], Pcm]) -> None:
    events = run(model, [job(spool("silence-10s"), silence_rule=True)], hear=lambda doubt: False)[0]
    assert text(events) == ""
    assert events[-1].language is None


def noise(kind: str) -> np.ndarray:
    """Ten seconds without speech, int16."""
    t = np.arange(round(SILENCE * 16000)) / 16000
    match kind:
        case "zeros":
            return np.zeros(len(t), "<i2")
        case "hum":
            return (1000 * np.sin(2 * np.pi * 50 * t) + 300 * np.sin(2 * np.pi * 150 * t)).astype("<i2")
        case _:
            return (np.random.default_rng(0).normal(size=len(t)) * 300).astype("<i2")


@pytest.mark.parametrize("kind", ["zeros", "hum", "noise"])
def test_what_is_no_speech_is_no_text_once_that_is_known(model: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "spool"
    noise(kind).tofile(path)
    audio = Pcm(str(path), 0, path.stat().st_size // 2)
    events = run(model, [job(audio, silence_rule=True)], hear=lambda doubt: False)[0]
    assert text(events) == ""
    assert events[-1].language is None
