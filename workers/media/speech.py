"""Where speech is in a recording: Silero VAD on onnxruntime, a few seconds of audio in each step.

Knows Silero's network and its rules for spans; knows nothing of the package around it, which would load torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Sequence
from importlib.metadata import distribution
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from protocol.errors import InternalError, RequestCancelled
from protocol.events import Progress, Speech
from protocol.jobs import DetectSpeech, Pcm, Span
from protocol.settings import SAMPLE_RATE

Floats = NDArray[np.float32]

WINDOW = 512
"""Samples that get one probability: 32 ms, the only size that the network was trained for at 16 kHz."""
CONTEXT = 64
"""Samples before a window that the network sees with it."""
STATE = (2, 1, 128)
"""The shape of its recurrent state."""
MEMORY_BYTES = 4 * (CONTEXT + math.prod(STATE))
STEP_WINDOWS = 312
"""Windows in one step: 10 s of audio, 40 ms of work."""

HYSTERESIS = 0.15
"""Speech goes on until the probability is this much under the threshold."""
LOWEST_EXIT = 0.01
MIN_SILENCE = SAMPLE_RATE // 10
"""Samples; a shorter pause splits nothing. This and the next are the defaults of Silero's get_speech_timestamps."""
PADDING = SAMPLE_RATE * 30 // 1000
"""Samples by which a span is widened at both ends."""

SAMPLE_BYTES = 2

Steps = Generator[Progress, None, Speech]


class Silero:
    """The network. It keeps nothing between calls: what it remembers of a recording is a `Memory`."""

    def __init__(self) -> None:
        """Raises InternalError when the wheel with the model is not installed."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(_model(), options, providers=["CPUExecutionProvider"])
        # What the first run allocates is there before the process's memory is limited.
        self.listen(np.zeros((1, WINDOW), np.float32), Memory())

    def listen(self, windows: Floats, memory: Memory) -> list[float]:
        """Probabilities of speech in windows, (n, WINDOW) samples in -1..1, that follow those `memory` has seen."""
        heard = []
        for window in windows:
            seen = np.concatenate([memory.context, window])[None]
            said, memory.state = self._session.run(None, {"input": seen, "state": memory.state, "sr": memory.rate})
            memory.context = window[-CONTEXT:]
            heard.append(float(said[0, 0]))
        return heard


class Memory:
    """What the network remembers of one recording."""

    def __init__(self, packed: bytes = b"") -> None:
        """`packed`: what `pack` gave; nothing: at the start of a recording. Raises InternalError for other bytes."""
        if packed and len(packed) != MEMORY_BYTES:
            raise InternalError(f"the speech detector's memory has {len(packed)} bytes instead of {MEMORY_BYTES}")
        floats = np.frombuffer(packed or bytes(MEMORY_BYTES), "<f4").astype(np.float32)
        self.state: Floats = floats[CONTEXT:].reshape(STATE)
        self.context: Floats = floats[:CONTEXT]
        self.rate: NDArray[np.int64] = np.array(SAMPLE_RATE, np.int64)

    def pack(self) -> bytes:
        """MEMORY_BYTES: context and state as little-endian float32."""
        return np.concatenate([self.context, self.state.ravel()]).astype("<f4").tobytes()


def _model() -> bytes:
    """The ONNX file in the wheel silero-vad. Its package is never imported."""
    files = distribution("silero-vad").files or ()
    found = [file for file in files if file.parts[-2:] == ("data", "silero_vad.onnx")]
    if not found:
        raise InternalError("the package silero-vad holds no model")
    return found[0].read_binary()


def detect_steps(job: DetectSpeech, silero: Silero) -> Steps:
    """Find speech; between two steps it may be closed to cancel.

    Raises InternalError for audio that is not there and for a process without memory.
    """
    began = time.perf_counter()
    memory = Memory()
    probabilities: list[float] = []
    total = job.audio.stop - job.audio.start
    for done in range(0, total, STEP_WINDOWS * WINDOW):
        try:
            probabilities += silero.listen(windows(job.audio, done, STEP_WINDOWS), memory)
        except MemoryError as error:
            raise InternalError("there was no memory left to look for speech") from error
        yield Progress(min(done + STEP_WINDOWS * WINDOW, total) / SAMPLE_RATE, total / SAMPLE_RATE)
    min_speech = job.min_speech_ms * SAMPLE_RATE // 1000
    spans = padded(spoken(probabilities, total, job.threshold, min_speech), total)
    return Speech(tuple(spans), (time.perf_counter() - began) * 1000)


def windows(audio: Pcm, start: int, most: int) -> Floats:
    """At most `most` windows from `start` samples on, (n, WINDOW) in -1..1; silence fills the recording's last one up.

    Raises InternalError for audio that is not there.
    """
    count = min(most * WINDOW, audio.stop - audio.start - start)
    try:
        raw: NDArray[Any] = np.fromfile(audio.path, "<i2", count, offset=(audio.start + start) * SAMPLE_BYTES)
    except FileNotFoundError as error:
        raise RequestCancelled("the recording was removed while it was listened to") from error
    except OSError as error:
        raise InternalError("the decoded audio could not be read") from error
    if len(raw) < count:
        raise InternalError("the decoded audio is shorter than announced")
    samples = raw.astype(np.float32) / np.float32(32768)
    return np.pad(samples, (0, -count % WINDOW)).reshape(-1, WINDOW)


def spoken(probabilities: Iterable[float], samples: int, threshold: float, min_speech: int) -> list[Span]:
    """Spans of more than `min_speech` samples in a recording of `samples`, one probability for each window of it.

    One begins with the window that reaches the threshold. It ends where the probability falls under the lower exit
    threshold, unless it is back over the threshold within MIN_SILENCE.
    """
    leave = max(threshold - HYSTERESIS, LOWEST_EXIT)
    spans: list[Span] = []
    start: int | None = None
    pause: int | None = None
    for number, probability in enumerate(probabilities):
        now = number * WINDOW
        if probability >= threshold:
            start, pause = (now if start is None else start), None
        elif start is not None and probability < leave:
            pause = now if pause is None else pause
            if now - pause >= MIN_SILENCE:
                spans.append(Span(start, pause))
                start = pause = None
    if start is not None:
        # A pause that the recording's end cut short is no silence yet.
        spans.append(Span(start, samples))
    return [span for span in spans if span.stop - span.start > min_speech]


def padded(spans: Sequence[Span], samples: int) -> list[Span]:
    """The spans with PADDING at both ends; two that are near share what is between them."""
    edges = [0, *(edge for span in spans for edge in (span.start, span.stop)), samples]
    # The room of an inner silence is for two spans, that at the recording's ends for one.
    gaps = [edges[2 * number + 1] - edges[2 * number] for number in range(len(spans) + 1)]
    room = [min(PADDING, gap // 2) for gap in gaps]
    room[0], room[-1] = min(PADDING, gaps[0]), min(PADDING, gaps[-1])
    return [Span(span.start - room[number], span.stop + room[number + 1]) for number, span in enumerate(spans)]
