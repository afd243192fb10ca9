"""One recording's way from sound to segments: seek, prompt, language, words, silence. openai/whisper's `transcribe`
as a generator: it stops at each need of the model and goes on with the answer.

Knows no batch and no other job; `engine.py` answers the needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.events import Segment, TokenLogprob, Word
from protocol.jobs import Transcribe
from protocol.past import Reached
from workers.whisper import segments
from workers.whisper.context import Known
from workers.whisper.decoding.attempt import Proposal, Result
from workers.whisper.decoding.fallback import Kit, decode_window, is_doubtful, is_silence
from workers.whisper.hearing import Hearing, Spent, Tongue
from workers.whisper.mel import N_FRAMES, LogMel
from workers.whisper.needs import Align, Ask, Steps
from workers.whisper.recording import Recording
from workers.whisper.segments import FRAMES_PER_SECOND, FRAMES_PER_TOKEN, Cut, Draft, Window
from workers.whisper.tokenizer import TextStream
from workers.whisper.vocabulary import Fitted
from workers.whisper.words import hallucinations, timing

if TYPE_CHECKING:
    from workers.whisper.model import Encoded

DISTRUSTED = 0.5
"""Text sampled at a higher temperature is no prompt (openai/whisper transcribe.py)."""


@dataclass
class History:
    """The tokens said so far that the next window is given, without the vocabulary's."""

    room: int
    tokens: list[int] = field(default_factory=list)

    def extend(self, tokens: tuple[int, ...]) -> None:
        self.tokens = [*self.tokens, *tokens][-self.room :] if self.room > 0 else []


@dataclass(frozen=True)
class Outlet:
    """Where results go, as soon as they are final; `progress` in seconds of the recording, with the place to go on from
    where this process dies."""

    segment: Callable[[Segment], None]
    progress: Callable[[float, Reached], None]


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
        reached: Reached | None = None,
    ) -> None:
        """`reached`: where an earlier job on this recording, or another process at this job, left off."""
        self._kit = kit
        self._job = job
        self._decoding = job.decoding
        self._recording = recording
        begun = reached or Reached(seek=0)
        self._mel = LogMel(
            recording.read, recording.samples, kit.dims.n_mels, scanned=begun.seek, loudest=begun.loudest
        )
        self._hearing = Hearing(kit, job.task, job.decoding, self._mel, tongue, spent)
        self._fitted = fitted
        self._known = Known.of(job.context, kit.tokenizer, timestamps=not job.decoding.without_timestamps)
        self._history = History(kit.prompt_budget - len(fitted.terms) - len(self._known.text))
        self._history.extend(fitted.prompt if reached is None else begun.said)
        if begun.seek:
            self._known = Known()  # It belongs to the first window.
        self._tongue = tongue
        self._outlet = outlet
        self._track = track
        self._last_speech = begun.last_speech
        self._seek = begun.seek
        self._draft = job.draft

    def run(self) -> Steps[Reached]:
        """-> where another job goes on; segments' ends are the job's to know."""
        yield from self._hearing.scan()
        while self._mel.frames - self._seek >= self._wanted_frames:
            window = Window(self._seek, min(N_FRAMES, self._mel.frames - self._seek))
            seek = yield from self._window(window)
            self._known = Known()
            # A last timestamp of 0 would hear the same window for ever.
            self._seek = seek if seek > window.seek else window.next
            self._outlet.progress(min(self._seek, self._mel.frames) / FRAMES_PER_SECOND, self._reached)
        return self._reached

    @property
    def _reached(self) -> Reached:
        return Reached(
            seek=self._seek,
            said=tuple(self._history.tokens),
            language=self._tongue.code,
            language_probability=self._tongue.probability,
            last_speech=self._last_speech,
            loudest=self._mel.loudest,
        )

    @property
    def _wanted_frames(self) -> int:
        """What must lie behind the seek for a window to be heard now: what the audio to come could change waits."""
        if self._job.whole:
            return 1
        ahead = 1  # The window's last frame hears a little of the next.
        if self._decoding.words and self._decoding.hallucination_silence_threshold is not None:
            ahead += math.ceil(self._decoding.hallucination_silence_threshold * FRAMES_PER_SECOND)
        return N_FRAMES + ahead

    def _window(self, window: Window) -> Steps[int]:
        """Hear one window and let out its segments. -> the next seek."""
        encoded, result = yield from self._hear(window)
        if is_silence(result, self._decoding):
            return window.next
        if self._is_doubtful(result) and not (yield from self._speech_in(window)):
            return window.next
        found = segments.cut(result.tokens, self._kit.tokenizer.timestamp_begin, window)
        self._known.bound(found.drafts, window)
        self._spell(found.drafts)
        if not self._decoding.words:
            self._commit(found.drafts, window, result)
            return found.seek
        seek, drafts = yield from self._words(encoded, found, window)
        if drafts is not None:
            self._commit(drafts, window, result)
        return seek

    def _hear(self, window: Window) -> Steps[tuple[Encoded, Result]]:
        encoded = yield from self._hearing.encode(window)
        key = (self._decoding.seed, self._track, window.seek)
        prompt = self._hearing.prompt((*self._fitted.terms, *self._history.tokens), self._known.tokens)
        proposal, self._draft = Proposal(self._draft), ()
        guard, limits = self._hearing.is_guarded(encoded), self._hearing.limits(window.seconds - self._known.start)
        result = yield from decode_window(
            self._kit, self._decoding, encoded, prompt, key, proposal, guard=guard, limits=limits
        )
        if result is None:
            encoded = yield from self._hearing.encode(window, full=True)
            result = yield from decode_window(
                self._kit, self._decoding, encoded, prompt, key, guard=False, limits=limits
            )
            assert result is not None
        return encoded, self._known.begun(result)

    # After the text: speech or not, words, segments.

    def _is_doubtful(self, result: Result) -> bool:
        """Whether to ask if anybody speaks. What the hint terms say is doubtful too: the reference has none."""
        if not self._decoding.silence_rule:
            return False
        return is_doubtful(result, self._decoding) or self._fitted.echoed(self._kit.tokenizer.decode(result.tokens))

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
        yield from self._align(encoded, [*self._known.drafts(), *found.drafts], window)
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
            opening = self._hearing.opening
            scores, logits = yield Align(encoded, timing.question(tokenizer, opening, text))
            timed = timing.timings(
                scores,
                logits,
                text,
                tokenizer=tokenizer,
                language=self._hearing.language,
                opening=len(opening),
                frames=window.size // FRAMES_PER_TOKEN,
            )
        timing.place(timed, drafts, eot=tokenizer.eot, window=window, last_speech=self._last_speech)
        for draft in drafts:
            draft.aligned = bool(timed)

    def _commit(self, drafts: list[Draft], window: Window, result: Result) -> None:
        """Let out what has text and takes time, and remember it as the next window's prompt."""
        self._history.extend(self._known.text)
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
