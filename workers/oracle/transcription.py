"""One recording through mlx-whisper's `transcribe`: its arguments, its result as events, and what is measured.

Knows mlx-whisper's interface; knows neither processes nor where models and audio come from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar

import mlx.core as mx
import msgspec
import numpy as np
from mlx_whisper.audio import HOP_LENGTH, N_FRAMES, SAMPLE_RATE
from mlx_whisper.transcribe import ModelHolder, transcribe
from mlx_whisper.whisper import Whisper
from numpy.typing import NDArray

from protocol.events import Progress, Segment, Timings, Transcribed, VocabularyReport, Word
from protocol.jobs import Decoding, Transcribe
from workers.loop import Emit
from workers.whisper.load import Loaded
from workers.whisper.recording import Recording
from workers.whisper.tokenizer import Tokenizer
from workers.whisper.vocabulary import Fitted, fit

T = TypeVar("T")

SEED = 0
WORST_LOGPROB = -100.0
"""Stands for an average log-probability that is not finite: JSON has no NaN."""


class Transcriber:
    """Runs jobs on one model, one after the other."""

    def __init__(self, loaded: Loaded) -> None:
        self._whisper = loaded.whisper
        self._name = loaded.model.id
        self._half = loaded.model.dtype != "float32"

    def run(self, audio: NDArray[np.float32], job: Transcribe, emit: Emit, joined: Recording | None = None) -> None:
        """Transcribe samples (16 kHz, -1..1) and emit Progress…, Segment…, Transcribed.

        `joined`: what the samples are when they are parts of the job's audio.
        """
        start = time.perf_counter()
        fitted = fitted_terms(job.decoding, self._whisper.dims)
        seconds = len(audio) / SAMPLE_RATE
        observed = ObservedWhisper(self._whisper, job.decoding.languages, seconds, emit, fitted.terms)
        # The only way to hand `transcribe` a loaded model: it looks here for the name it is given.
        ModelHolder.model, ModelHolder.model_path = observed, self._name
        try:
            result = transcribe(audio, path_or_hf_repo=self._name, fp16=self._half, **arguments(job))
        finally:
            ModelHolder.model = ModelHolder.model_path = None
            mx.clear_cache()
        segments = [segment for raw in result["segments"] if (segment := to_segment(raw)).text.strip()]
        for segment in segments:
            emit(segment if joined is None else moved(segment, joined))
        spoken = bool(segments) or job.decoding.language is not None
        total = (time.perf_counter() - start) * 1000
        emit(
            Transcribed(
                language=result["language"] if spoken else None,
                language_probability=observed.language_probability if spoken else None,
                timings=observed.timings(total),
                vocabulary=report(fitted),
            )
        )


def arguments(job: Transcribe) -> dict[str, Any]:
    """The job as keywords of `transcribe`; what its names are there, they are here."""
    decoding = job.decoding
    return {
        "task": job.task,
        "language": decoding.language,
        "initial_prompt": prompt(decoding),
        "temperature": decoding.temperature,
        "length_penalty": decoding.length_penalty,
        "condition_on_previous_text": decoding.condition_on_previous_text,
        "no_speech_threshold": decoding.no_speech_threshold,
        "logprob_threshold": decoding.logprob_threshold,
        "compression_ratio_threshold": decoding.compression_ratio_threshold,
        "without_timestamps": decoding.without_timestamps,
        "best_of": decoding.best_of,
        "word_timestamps": decoding.words,
        "hallucination_silence_threshold": decoding.hallucination_silence_threshold,
    }


def prompt(decoding: Decoding) -> str | None:
    """The prompt, or None for one that says nothing. Special tokens are text here, and never commands."""
    if not decoding.prompt or not decoding.prompt.strip():
        return None
    return decoding.prompt.replace("<|", "< |")


def fitted_terms(decoding: Decoding, dims: Any) -> Fitted:
    """The job's hint terms as our own engine fits them. dims: the model's."""
    encode = Tokenizer(dims.n_vocab).encode
    return fit(encode, decoding.vocabulary, decoding.prompt, dims.n_text_ctx // 2 - 1)


def report(fitted: Fitted) -> VocabularyReport | None:
    if not fitted.given:
        return None
    return VocabularyReport(fitted.given, fitted.fitted, len(fitted.terms), fitted.budget)


def moved(segment: Segment, joined: Recording) -> Segment:
    """A segment of the joined recording with the times of the audio that its parts were taken from."""

    def times(part: Segment | Word) -> dict[str, float]:
        return {"start": joined.original(part.start), "end": joined.original(part.end, end=True)}

    words = segment.words and tuple(msgspec.structs.replace(word, **times(word)) for word in segment.words)
    return msgspec.structs.replace(segment, **times(segment), words=words)


def to_segment(raw: dict[str, Any]) -> Segment:
    """mlx-whisper's segment as it is, but for numbers that JSON cannot say."""
    return Segment(
        start=float(raw["start"]),
        end=float(raw["end"]),
        text=raw["text"],
        tokens=tuple(int(token) for token in raw["tokens"]),
        seek=int(raw["seek"]),
        temperature=float(raw["temperature"]),
        avg_logprob=finite(raw["avg_logprob"], WORST_LOGPROB),
        compression_ratio=finite(raw["compression_ratio"], 0.0),
        no_speech_prob=finite(raw["no_speech_prob"], 0.0),
        words=tuple(to_word(word) for word in raw["words"]) if "words" in raw else None,
    )


def to_word(raw: dict[str, Any]) -> Word:
    return Word(raw["word"], float(raw["start"]), float(raw["end"]), finite(raw["probability"], 0.0))


def finite(value: float, otherwise: float) -> float:
    return float(value) if math.isfinite(value) else otherwise


class ObservedWhisper:
    """The model as `transcribe` sees it: every call goes to the real one, timed, and each window reports progress.

    The encoder runs here instead of within `decode`, which takes its output as well: so it can be timed apart, and a
    window that is decoded again at a higher temperature is not encoded again.
    """

    def __init__(
        self,
        whisper: Whisper,
        languages: tuple[str, ...],
        seconds: float,
        emit: Emit,
        terms: tuple[int, ...] = (),
    ) -> None:
        """`terms`: tokens that stand first in every window's prompt; `transcribe` has no such argument."""
        self.dims = whisper.dims
        self.is_multilingual = whisper.is_multilingual
        self.num_languages = whisper.num_languages
        self.language_probability: float | None = None
        self._whisper = whisper
        self._languages = languages
        self._emit = emit
        self._terms = terms
        self._seconds = seconds
        self._seek = 0
        self._window: mx.array | None = None
        self._features: mx.array | None = None
        self._advance = 0
        self._spent = {"mel": 0.0, "encode": 0.0, "align": 0.0}

    @property
    def alignment_heads(self) -> mx.array:
        """The heads that the words' times are read from: (n, 2), layer and head."""
        heads: mx.array = self._whisper.alignment_heads
        return heads

    def detect_language(self, mel: mx.array) -> tuple[None, dict[str, float]]:
        """As the model does it, among the languages that were asked for. mel: (3000, n_mels), the first 30 s."""
        self._timed("mel", lambda: mel)
        features = self._timed("encode", lambda: self._whisper.encoder(mel[None]))
        _, (probabilities,) = self._whisper.detect_language(features)
        allowed = self._languages or tuple(probabilities)
        total = sum(probabilities[code] for code in allowed)
        share = {code: probabilities[code] / total if total > 0 else 1 / len(allowed) for code in allowed}
        self.language_probability = max(share.values())
        return None, share

    def decode(self, mel: mx.array, options: Any) -> Any:
        """Decode one window, (3000, n_mels); `transcribe` passes the same array again to retry it."""
        if mel is not self._window:
            self._seek += self._advance
            self._timed("mel", lambda: mel)
            self._features = self._timed("encode", lambda: self._whisper.encoder(mel[None]))
            self._window = mel
        assert self._features is not None
        # mlx-whisper's compiled sampler keeps the key it was first traced with. The same seed before each call makes
        # that key, and so every answer, independent of the jobs before.
        mx.random.seed(SEED)
        (result,) = self._whisper.decode(self._features, self._with_terms(options))
        self._advance = advance(result.tokens, self._whisper.dims.n_vocab)
        done = (self._seek + self._advance) * HOP_LENGTH / SAMPLE_RATE
        self._emit(Progress(min(done, self._seconds), self._seconds))
        return result

    def _with_terms(self, options: Any) -> Any:
        """mlx-whisper keeps the last 223 tokens of a prompt: what it has of its own gets what the terms leave."""
        if not self._terms:
            return options
        room = self._whisper.dims.n_text_ctx // 2 - 1 - len(self._terms)
        said = list(options.prompt or ())[-room:] if room > 0 else []
        return replace(options, prompt=[*self._terms, *said])

    def forward_with_cross_qk(self, mel: mx.array, tokens: mx.array) -> Any:
        """For the words' times. mel: (1, 3000, n_mels)."""
        return self._timed("align", lambda: self._whisper.forward_with_cross_qk(mel, tokens))

    def timings(self, total_ms: float) -> Timings:
        """Milliseconds; what is none of these phases is decoding."""
        spent = {phase: round(milliseconds, 3) for phase, milliseconds in self._spent.items()}
        return Timings(**spent, decode=round(total_ms - sum(spent.values()), 3))

    def _timed(self, phase: Literal["mel", "encode", "align"], compute: Callable[[], T]) -> T:
        """What is computed: an array, or some together."""
        start = time.perf_counter()
        result = compute()
        mx.eval(result)
        self._spent[phase] += (time.perf_counter() - start) * 1000
        return result


def advance(tokens: list[int], n_vocab: int) -> int:
    """Mel frames by which a window with these tokens moves on: to its last pair of timestamps, else past its end."""
    first: int = n_vocab - (int(N_FRAMES) // 2 + 1)  # <|0.00|>; the timestamps close every vocabulary
    stamps = [token >= first for token in tokens]
    if stamps[-2:] == [False, True]:
        return int(N_FRAMES)
    pairs = [index for index in range(1, len(stamps)) if stamps[index - 1] and stamps[index]]
    return (tokens[pairs[-1] - 1] - first) * 2 if pairs else int(N_FRAMES)
