"""Spoken test audio without recordings: espeak-ng through ctypes, no network and no system package.

Knows how to say a sentence; knows nothing of Starling.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import threading
from typing import Any

import espeakng_loader
import numpy as np
import numpy.typing as npt
import soxr

SAMPLE_RATE = 16_000

Samples = npt.NDArray[np.int16]

_SYNCHRONOUS = 2  # AUDIO_OUTPUT_SYNCHRONOUS: samples come through the callback, before espeak_Synth returns
_UTF8 = 1
_RATE = 1  # espeak_PARAMETER
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
_ONE_AT_A_TIME = threading.Lock()  # espeak-ng is not re-entrant


@functools.cache
def speak(text: str, voice: str = "en+f2", rate: int = 140) -> tuple[Samples, int]:
    """`text` spoken at `rate` words a minute: mono int16 samples (read-only) and their rate, always 16 kHz.

    The default voice is the one that Whisper's small models understand best. The same arguments give the same
    samples. Raises LookupError for a voice that espeak-ng does not have.
    """
    with _ONE_AT_A_TIME:
        # A fresh library each time: what one sentence leaves behind in it changes the next one's samples.
        library: Any = ctypes.CDLL(espeakng_loader.get_library_path())
        try:
            raw, raw_rate = _synthesise(library, text.encode(), voice.encode(), rate)
        finally:
            library.espeak_Terminate()
            _ctypes.dlclose(library._handle)
    resampled = soxr.resample(raw.astype(np.float32) / 32768, raw_rate, SAMPLE_RATE, quality="VHQ")
    samples = np.round(np.clip(resampled, -1, 32767 / 32768) * 32768).astype(np.int16)
    samples.setflags(write=False)
    return samples, SAMPLE_RATE


def timeline(*parts: str | float, voice: str = "en+f2") -> Samples:
    """Sentences (str) and silences (seconds) one after the other, at 16 kHz."""
    pieces = [
        speak(part, voice)[0] if isinstance(part, str) else np.zeros(round(part * SAMPLE_RATE), np.int16)
        for part in parts
    ]
    return np.concatenate(pieces)


def _synthesise(library: Any, text: bytes, voice: bytes, rate: int) -> tuple[Samples, int]:
    """int16 samples at espeak-ng's own rate, and that rate."""
    pieces: list[Samples] = []

    def take(samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = _CALLBACK(take)
    raw_rate: int = library.espeak_Initialize(_SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    if raw_rate <= 0:
        raise RuntimeError("espeak-ng does not start")
    library.espeak_SetSynthCallback(callback)
    if library.espeak_SetVoiceByName(voice):
        raise LookupError(f"espeak-ng has no voice {voice.decode()!r}")
    library.espeak_SetParameter(_RATE, rate, 0)
    library.espeak_ng_SetRandSeed(ctypes.c_long(1))  # breath noise is random
    status = library.espeak_Synth(text, ctypes.c_size_t(len(text) + 1), 0, 1, 0, _UTF8, None, None)
    if status or not pieces:
        raise RuntimeError(f"espeak-ng said nothing (status {status})")
    return np.concatenate(pieces), raw_rate
