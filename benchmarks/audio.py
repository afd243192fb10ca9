"""The clips that are timed: real recordings where they are beside the checkout, else spoken by espeak-ng."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import soundfile

from protocol.settings import SAMPLE_RATE

RECORDINGS = Path(__file__).parents[2] / "shared" / "speech" / "audio"
NAMES = ("ls-2033-164914-0009.flac", "jfk.mp3", "earnings22_1_4482311_3_62.m4a", "long-ljspeech.mp3")
"""7 s, 11 s, 60 s and 4 minutes."""
LONG_NAME = "long-librispeech-5spk.ogg"
CROWD, CROWD_SECONDS = 8, 30
PIECE = "The quick brown fox jumps over the lazy dog. Please open the window. "
"""Five seconds."""


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
    """Files to time, the shortest first; what has to be made goes into `folder`."""
    found = [RECORDINGS / name for name in NAMES if (RECORDINGS / name).is_file()]
    return found or [_spoken(folder / f"spoken-{count}.wav", count) for count in (1, 2, 12)]


def crowd(folder: Path) -> list[Path]:
    """CROWD different files of CROWD_SECONDS each, written into `folder`."""
    source = RECORDINGS / LONG_NAME
    if not source.is_file():
        source = _spoken(folder / "crowd.wav", CROWD * CROWD_SECONDS // 4)
    samples, length = read(str(source)), CROWD_SECONDS * SAMPLE_RATE
    paths = [folder / f"crowd-{number}.wav" for number in range(CROWD)]
    for number, path in enumerate(paths):
        soundfile.write(path, samples[number * length : (number + 1) * length], SAMPLE_RATE)
    return paths


def _spoken(path: Path, pieces: int) -> Path:
    from tests.speech import speak

    soundfile.write(path, speak(PIECE * pieces)[0], SAMPLE_RATE)
    return path
