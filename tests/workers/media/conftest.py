"""The sentence that most of these tests are made of."""

from __future__ import annotations

import numpy as np
import pytest

from tests import audio_inputs as make
from tests.speech import speak


@pytest.fixture(scope="session")
def sentence() -> make.Audio:
    spoken, _ = speak("The quick brown fox jumps over the lazy dog.")
    return spoken.astype(np.float32) / 32768
