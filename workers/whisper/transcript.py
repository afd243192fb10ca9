"""One recording's way from sound to segments: seek, prompt, language, words, silence. openai/whisper's `transcribe`
as a generator: it stops at each need of the model and goes on with the answer.

Knows no batch and no other job; `engine.py` answers the needs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from protocol.events import Segment, TokenLogprob, Word
from protocol.jobs import Transcribe
from workers.whisper import segments
from workers.whisper.decoding.attempt import Result
from workers.whisper.decoding.fallback import Kit, Prompt, decode_window, is_doubtful, is_silence
from workers.whisper.mel import N_FRAMES, LogMel
from workers.whisper.needs import Align, Ask, Encode, Floats, Pause, Prefill, Steps
from workers.whisper.recording import Recording
from workers.whisper.segments import FRAMES_PER_SECOND, FRAMES_PER_TOKEN, Cut, Draft, Window
from workers.whisper.tokenizer import TextStream, Tokenizer
from workers.whisper.vocabulary import Fitted
from workers.whisper.words import hallucinations, timing

if TYPE_CHECKING:
    from workers.whisper.model import Encoded

SCAN_FRAMES = 60_000
"""Ten minutes of mel in one turn: about 0.1 s."""
AUTO_MARGIN = 150
"""Encoder frames, 3 s, that `auto` grants beyond the audio: fewer than 2 s made loops (cpu-speed.md, section 3)."""
LIKELY = 0.5
"""The probability of a language that is not looked at twice."""
DISTRUSTED = 0.5
"""Text sampled at a higher temperature is no prompt (openai/whisper transcribe.py)."""


@dataclass
class Tongue:
    """A job's language: given, or detected by its first track."""

    code: str | None
    probability: float | None = None


Phase = Literal["mel", "encode", "decode", "align"]


class Spent(dict[Phase, float]):
    """Seconds that a job's phases took; steps shared with others count in full."""

    @contextmanager
    def watch(self, phase: Phase) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.add(phase, time.perf_counter() - begun)

    def add(self, phase: Phase, seconds: float) -> None:
        self[phase] = self.get(phase, 0.0) + seconds


@dataclass
class History:
    """The tokens said so far that the next window is given, without the vocabulary's."""

    room: int
    tokens: list[int] = field(default_factory=list)

    def extend(self, tokens: tuple[int, ...]) -> None:
        self.tokens = [*self.tokens, *tokens][-self.room :] if self.room > 0 else []


@dataclass(frozen=True)
class Outlet:
    """Where results go, as soon as they are final; `progress` in seconds of the recording."""

    segment: Callable[[Segment], None]
    progress: Callable[[float], None]


class Transcript:
    """One track: a recording decoded in order. A job has one, or one for each independent span."""

    def __init__(
        self,
        kit: Kit,
        job: Transcribe,
        recording: Recording,
        fitted: Fitted,
        tongue: Tongue,
        spent: Spent,
        outlet: Outlet,
        track: int = 0,
    ) -> None:
        self._kit = kit
        self._job = job
        self._decoding = job.decoding
        self._recording = recording
        self._mel = LogMel(recording.read, recording.samples, kit.dims.n_mels)
        self._terms = fitted.terms
        self._history = History(kit.prompt_budget - len(fitted.terms))
        self._history.extend(fitted.prompt)
        self._tongue = tongue
        self._spent = spent
        self._outlet = outlet
        self._track = track
        self._last_speech = 0.0

    def run(self) -> Steps[None]:
        yield from self._scan()
        seek = 0
        while seek < self._mel.frames:
            window = Window(seek, min(N_FRAMES, self._mel.frames - seek))
            seek = yield from self._window(window)
            # A last timestamp of 0 would hear the same window for ever.
            seek = seek if seek > window.seek else window.next
            self._outlet.progress(min(seek, self._mel.frames) / FRAMES_PER_SECOND)

    def _scan(self) -> Steps[None]:
        while True:
            with self._spent.watch("mel"):
                if self._mel.scan(SCAN_FRAMES):
                    return
            yield Pause()

    def _window(self, window: Window) -> Steps[int]:
        """Hear one window and let out its segments. -> the next seek."""
        encoded, result = yield from self._hear(window)
        if is_silence(result, self._decoding):
            return window.next
        doubtful = self._decoding.silence_rule and is_doubtful(result, self._decoding)
        if doubtful and not (yield from self._speech_in(window)):
            return window.next
        found = segments.cut(result.tokens, self._kit.tokenizer.timestamp_begin, window)
        self._spell(found.drafts)
        if not self._decoding.words:
            self._commit(found.drafts, window, result)
            return found.seek
        seek, drafts = yield from self._words(encoded, found, window)
        if drafts is not None:
            self._commit(drafts, window, result)
        return seek

    # Hearing a window: encode, language, decode.

    def _hear(self, window: Window) -> Steps[tuple[Encoded, Result]]:
        with self._spent.watch("mel"):
            mel = self._mel.window(window.seek, window.size)
        full = self._kit.dims.n_audio_ctx
        context = self._context(window)
        guard = context < full and self._decoding.audio_ctx == "auto"
        encoded: Encoded = yield Encode(mel, context)
        if self._tongue.code is None:
            yield from self._detect(encoded, unsure=window.size < N_FRAMES and context == full)
        key = (self._decoding.seed, self._track, window.seek)
        prompt = self._prompt()
        result = yield from decode_window(self._kit, self._decoding, encoded, prompt, key, guard=guard)
        if result is None:
            encoded = yield Encode(mel, full)
            result = yield from decode_window(self._kit, self._decoding, encoded, prompt, key, guard=False)
            assert result is not None
        return encoded, result

    def _context(self, window: Window) -> int:
        """Encoder frames for a window; `auto` is for windows that are not full."""
        full = self._kit.dims.n_audio_ctx
        asked = self._decoding.audio_ctx
        if asked != "auto":
            return min(asked, full)
        needed = math.ceil(window.size / FRAMES_PER_TOKEN) + AUTO_MARGIN
        return min(full, -(-needed // 4) * 4) if window.size < N_FRAMES else full

    def _detect(self, encoded: Encoded, *, unsure: bool) -> Steps[None]:
        """The likeliest of the languages that the job allows and the model knows.

        The reference listens to the audio and the silence after it, where a window to decode ends in zeros. That
        costs an encoding more, so it is done only if `unsure` and no language is likely.
        """
        tokenizer = self._kit.tokenizer
        codes = [code for code in self._decoding.languages if code in tokenizer.languages] or tokenizer.languages
        if len(codes) == 1:
            self._tongue.code = codes[0]
            return
        _, logits = yield Prefill(encoded, (tokenizer.sot,), (0,))
        code, probability = likeliest_language(logits[0], tokenizer, codes)
        if unsure and probability < LIKELY:
            encoded = yield Encode(self._mel.window(0, N_FRAMES), self._kit.dims.n_audio_ctx)
            _, logits = yield Prefill(encoded, (tokenizer.sot,), (0,))
            code, probability = likeliest_language(logits[0], tokenizer, codes)
        self._tongue.code, self._tongue.probability = code, probability

    def _prompt(self) -> Prompt:
        """[mark, terms, what was said] and the opening; without anything said, the opening alone."""
        tokenizer = self._kit.tokenizer
        said = (*self._terms, *self._history.tokens)
        before = (tokenizer.sot_prev, *said) if said else ()
        opening = self._opening()
        if self._decoding.without_timestamps:
            opening = (*opening, tokenizer.no_timestamps)
        return Prompt((*before, *opening), len(before))

    @property
    def _language(self) -> str:
        assert self._tongue.code is not None
        return self._tongue.code

    def _opening(self) -> tuple[int, ...]:
        return self._kit.tokenizer.opening(self._language, self._job.task)

    # After the text: speech or not, words, segments.

    def _speech_in(self, window: Window) -> Steps[bool]:
        start = self._recording.original(window.offset)
        end = self._recording.original(window.offset + window.seconds, end=True)
        if self._job.speech is None:
            return bool((yield Ask(start, end)))
        return any(span.start < end * 16_000 and span.stop > start * 16_000 for span in self._job.speech)

    def _spell(self, drafts: list[Draft]) -> None:
        """A character split over two segments belongs to the one that ends it; half a character at the end of the
        window to none."""
        stream = TextStream(self._kit.tokenizer)
        for draft in drafts:
            draft.text = stream.feed(draft.tokens)

    def _words(self, encoded: Encoded, found: Cut, window: Window) -> Steps[tuple[int, list[Draft] | None]]:
        """Give the drafts words. -> the next seek, and the drafts to keep; None: nothing of this window counts."""
        yield from self._align(encoded, found.drafts, window)
        seek = found.seek
        end = segments.spoken_end(found.drafts)
        if not found.closed and end is not None and end > window.offset:
            seek = round(end * FRAMES_PER_SECOND)
        drafts = found.drafts
        if self._decoding.hallucination_silence_threshold is not None:
            verdict = hallucinations.judge(
                drafts,
                window,
                seek=seek,
                closed=found.closed,
                threshold=self._decoding.hallucination_silence_threshold,
                last_speech=self._last_speech,
                frames=self._mel.frames,
            )
            if verdict.skipped:
                return verdict.seek, None
            seek, drafts = verdict.seek, verdict.drafts
        end = segments.spoken_end(drafts)
        if end is not None:
            self._last_speech = end
        return seek, drafts

    def _align(self, encoded: Encoded, drafts: list[Draft], window: Window) -> Steps[None]:
        tokenizer = self._kit.tokenizer
        text = [token for draft in drafts for token in timing.text_tokens(draft, tokenizer.eot)]
        timed: list[timing.Timing] = []
        if text:
            opening = self._opening()
            scores, logits = yield Align(encoded, timing.question(tokenizer, opening, text))
            timed = timing.timings(
                scores,
                logits,
                text,
                tokenizer=tokenizer,
                language=self._language,
                opening=len(opening),
                frames=window.size // FRAMES_PER_TOKEN,
            )
        timing.place(timed, drafts, eot=tokenizer.eot, window=window, last_speech=self._last_speech)
        for draft in drafts:
            draft.aligned = bool(timed)

    def _commit(self, drafts: list[Draft], window: Window, result: Result) -> None:
        """Let out what has text and takes time, and remember it as the next window's prompt."""
        for draft in drafts:
            if draft.start != draft.end and draft.text.strip():
                self._history.extend(draft.tokens)
                if draft.spoken.strip():
                    self._outlet.segment(self._segment(draft, window, result))
        if not self._decoding.condition_on_previous_text or result.temperature > DISTRUSTED:
            self._history.tokens.clear()

    def _segment(self, draft: Draft, window: Window, result: Result) -> Segment:
        here = self._recording.original
        spoken = tuple(
            Word(word.word, here(word.start), here(word.end, end=True), word.probability) for word in draft.words
        )
        return Segment(
            start=here(draft.start),
            end=here(draft.end, end=True),
            text=draft.spoken,
            tokens=draft.tokens,
            seek=window.seek,
            temperature=result.temperature,
            avg_logprob=result.avg_logprob,
            compression_ratio=result.compression_ratio,
            no_speech_prob=result.no_speech_prob,
            words=spoken if self._decoding.words else None,
            logprobs=self._logprobs(draft, result) if self._decoding.logprobs else None,
        )

    def _logprobs(self, draft: Draft, result: Result) -> tuple[TokenLogprob, ...]:
        tokenizer = self._kit.tokenizer
        values = result.logprobs[draft.first : draft.first + len(draft.tokens)]
        return tuple(
            TokenLogprob(tokenizer.decode([token]), tokenizer.bytes_of(token), value)
            for token, value in zip(draft.tokens, values, strict=True)
            if token < tokenizer.eot
        )


def likeliest_language(logits: Floats, tokenizer: Tokenizer, codes: tuple[str, ...] | list[str]) -> tuple[str, float]:
    """logits: (vocab,) behind the start of the transcript -> code, and its probability among `codes`."""
    chosen = logits[[tokenizer.language_token(code) for code in codes]]
    weights = np.exp(chosen - chosen.max())
    best = int(weights.argmax())
    return codes[best], float(weights[best] / weights.sum())
