"""What is being said in audio that goes on: one window, one attempt, and how far each of its words has listened.

The frame that a token listens to is AlignAtt's (Papi, Turchi, Negri 2023, arXiv:2305.11408). Knows no policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from protocol.events import Guessed, GuessedWord
from protocol.jobs import Guess
from workers.whisper.context import Known
from workers.whisper.decoding.attempt import Proposal, Result, Strategy
from workers.whisper.decoding.fallback import Kit, attempt
from workers.whisper.hearing import Hearing, Spent, Tongue
from workers.whisper.mel import N_FRAMES, LogMel
from workers.whisper.needs import Align, Steps
from workers.whisper.recording import Recording
from workers.whisper.segments import FRAMES_PER_TOKEN, Window
from workers.whisper.vocabulary import Fitted
from workers.whisper.words import timing

if TYPE_CHECKING:
    from workers.whisper.model import Encoded


class Guessing:
    """One job's."""

    def __init__(
        self, kit: Kit, job: Guess, recording: Recording, fitted: Fitted, tongue: Tongue, spent: Spent
    ) -> None:
        self._kit = kit
        self._job = job
        self._mel = LogMel(recording.read, recording.samples, kit.dims.n_mels)
        self._hearing = Hearing(kit, job.task, job.decoding, self._mel, tongue, spent)
        self._known = Known.of(job.context, kit.tokenizer, timestamps=not job.decoding.without_timestamps)
        room = kit.prompt_budget - len(fitted.terms) - len(self._known.text)
        self._before = (*fitted.terms, *(fitted.prompt[-room:] if room > 0 else ()))
        self._tongue = tongue

    def run(self) -> Steps[Guessed]:
        yield from self._hearing.scan()
        window = Window(0, min(N_FRAMES, self._mel.frames))
        if not window.size:
            return Guessed((), (), 0.0, 0.0, 0.0, self._tongue.code)
        encoded = yield from self._hearing.encode(window, hasty=True)
        decoding = self._job.decoding
        result = yield from attempt(
            self._kit,
            decoding,
            encoded,
            self._hearing.prompt(self._before, self._known.tokens),
            Strategy(decoding.temperature[0]),
            (decoding.seed, 0, 0),
            self._proposal(),
            limits=self._hearing.limits(window.seconds - self._known.start),
            loops=False,
        )
        words = yield from self._words(encoded, result, window)
        return Guessed(
            words=words,
            tokens=result.tokens,
            avg_logprob=result.avg_logprob,
            no_speech_prob=result.no_speech_prob,
            compression_ratio=result.compression_ratio,
            language=self._hearing.language,
        )

    def _proposal(self) -> Proposal:
        """What was said is forced: as the draft has it, timestamps and all, or behind a first timestamp."""
        tokenizer, said, draft = self._kit.tokenizer, self._job.said, self._job.draft
        if not said:
            return Proposal(draft)
        places = [i for i, token in enumerate(draft) if token < tokenizer.eot][: len(said)]
        if tuple(draft[i] for i in places) == said:
            return Proposal(draft, forced=places[-1] + 1)
        timed = not self._job.decoding.without_timestamps
        opening = (tokenizer.timestamp_begin,) if timed and not self._known.tokens else ()
        return Proposal((*opening, *said), forced=len(opening) + len(said))

    def _words(self, encoded: Encoded, result: Result, window: Window) -> Steps[tuple[GuessedWord, ...]]:
        tokenizer = self._kit.tokenizer
        said = zip(result.tokens, result.logprobs, strict=True)
        spoken = [(token, math.exp(logprob)) for token, logprob in said if token < tokenizer.eot]
        text = [token for token, _ in spoken]
        frames = window.size // FRAMES_PER_TOKEN
        heard = None
        if self._job.listening and text and frames:
            opening, known = self._hearing.opening, self._known.text
            scores, _ = yield Align(encoded, timing.question(tokenizer, opening, (*known, *text)))
            # The row before a token is where it was chosen.
            listened = timing.attention(scores[:, :, :frames])[len(opening) + len(known) :].argmax(axis=-1)
            heard = [float(frame) / timing.TOKENS_PER_SECOND for frame in listened]
        split = tokenizer.split_words(text, self._hearing.language)
        return _merged(split, [probability for _, probability in spoken], heard)


def _merged(
    split: Sequence[tuple[str, list[int]]], probabilities: Sequence[float], heard: Sequence[float] | None
) -> tuple[GuessedWord, ...]:
    """`probabilities` and `heard`: of each token. Punctuation joins its word and does not count as heard."""
    words, stop = [], 0
    for text, tokens in split:
        stop += len(tokens)
        end = heard[stop - 1] if heard else 0.0
        words.append(timing.Timing(text, list(tokens), start=end, end=end, probability=1.0))
    timing.merge_punctuation(words)
    found, first = [], 0
    for word in words:
        if word.word:
            stop = first + len(word.tokens)
            least = min(probabilities[first:stop])
            found.append(GuessedWord(word.word, tuple(word.tokens), word.end if heard else None, least))
            first = stop
    return tuple(found)
