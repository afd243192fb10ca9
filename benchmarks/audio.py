"""The clips that are timed: real recordings where they are beside the checkout, else spoken by espeak-ng."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import soundfile

from protocol.settings import SAMPLE_RATE

RECORDINGS = Path(__file__).parents[2] / "shared" / "speech" / "audio"
NAMES = ("ls-1995-1837-0001.flac", "jfk.mp3", "earnings22_1_4482311_3_62.m4a")
"""9 s, 11 s and 60 s."""


def read(path: str) -> npt.NDArray[np.float32]:
    """All of a file as mlx-whisper's own loader would have it, 16 kHz mono: (samples,) float32 in -1…1."""
    blocks = []
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
    with av.open(path) as container:
        for frame in container.decode(audio=0):
            blocks += [block.to_ndarray()[0] for block in resampler.resample(frame)]
    blocks += [block.to_ndarray()[0] for block in resampler.resample(None)]
    samples: npt.NDArray[np.float32] = np.concatenate(blocks).astype(np.float32) / np.float32(32768)
    return samples


def clips(folder: Path) -> list[Path]:
    """Files to time; what has to be made goes into `folder`."""
    found = [RECORDINGS / name for name in NAMES if (RECORDINGS / name).is_file()]
    return found or [_spoken(folder / f"spoken-{count}.wav", count) for count in (2, 4, 16)]


def _spoken(path: Path, sentences: int) -> Path:
    from tests.speech import speak

    samples, rate = speak("The quick brown fox jumps over the lazy dog. Please open the window. " * sentences)
    soundfile.write(path, samples, rate)
    return path
