"""`python -m benchmarks.partials`: which words of an utterance can be promised while it is spoken, and how soon.

In process over the engine, as fast as it goes: each policy sees the guesses that it would see if an utterance grew
by `--step`. Knows policies; knows no session.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from statistics import mean
from typing import Protocol

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.audio import read
from benchmarks.corpus import MANIFEST
from protocol.events import Event, Guessed, GuessedWord, Segment, Transcribed
from protocol.jobs import Decoding, Guess, Pcm, Span, Transcribe
from protocol.settings import SAMPLE_RATE, WhisperSettings
from service.config import Config
from service.dictation.partials import Partials
from service.dictation.segmentation import WINDOW, Segmenter, Utterance
from service.dictation.story import DISTRUSTED, SURE, TAIL
from workers.media.speech import Memory, Silero
from workers.whisper.engine import WhisperEngine, build

LONGEST_S = 20.0
ENGLISH = 2
"""Of every so many clips one is English, as long as there are others."""
THRESHOLD, MIN_SPEECH_MS, SILENCE_MS = 0.5, 250, 500


class Policy(Protocol):
    """What is shown of an utterance, and what of that stays."""

    @property
    def said(self) -> tuple[int, ...]: ...
    @property
    def draft(self) -> tuple[int, ...]: ...
    def update(self, guessed: Guessed, seconds: float) -> tuple[str, str]: ...


class Known:
    """A policy of others: a guess's words may stay as far as `_kept` says, but for `held_back` of them."""

    def __init__(self, held_back: int) -> None:
        self._held_back = held_back
        self._stable: tuple[GuessedWord, ...] = ()
        self.draft: tuple[int, ...] = ()

    @property
    def said(self) -> tuple[int, ...]:
        return tuple(token for word in self._stable for token in word.tokens)

    def update(self, guessed: Guessed, seconds: float) -> tuple[str, str]:
        kept = guessed.words[: self._kept(guessed.words, seconds)]
        if len(kept) > len(self._stable) and _text(kept).startswith(_text(self._stable)):
            self._stable = kept
        self.draft = guessed.tokens
        return _text(guessed.words), _text(self._stable)

    def _kept(self, words: Sequence[GuessedWord], seconds: float) -> int:
        raise NotImplementedError


class AlignAtt(Known):
    """A word stays once the frame that it listens to most is `margin` seconds from the audio's end."""

    def __init__(self, margin: float, held_back: int = 1) -> None:
        super().__init__(held_back)
        self._margin = margin

    def _kept(self, words: Sequence[GuessedWord], seconds: float) -> int:
        heard = sum(1 for _ in takewhile(lambda word: (word.heard or 0.0) <= seconds - self._margin, words))
        return max(0, min(heard, len(words) - self._held_back))


class LocalAgreement(Known):
    """What two guesses in a row begin with stays."""

    def __init__(self, held_back: int = 0) -> None:
        super().__init__(held_back)
        self._last: Sequence[GuessedWord] = ()

    def _kept(self, words: Sequence[GuessedWord], seconds: float) -> int:
        pairs = takewhile(lambda pair: pair[0].tokens == pair[1].tokens, zip(self._last, words, strict=False))
        agreed = sum(1 for _ in pairs)
        self._last = words
        return max(0, agreed - self._held_back)


POLICIES: dict[str, Callable[[], Policy]] = {
    **{f"ours, {seconds:.0f} s": partial(Partials, seconds) for seconds in (4.0, 8.0, 12.0)},
    **{f"LocalAgreement-2, {count} held back": partial(LocalAgreement, count) for count in (0, 2)},
    **{f"AlignAtt, {margin} s": partial(AlignAtt, margin) for margin in (0.5, 2.0)},
}
"""`ours` with its own setting, less and more patience."""


@dataclass
class Spoken:
    """An utterance. `ends`: of each of its words, characters of the text up to there and seconds."""

    audio: Pcm
    decoding: Decoding
    text: str
    trusted: bool
    """Whether the text may condition what follows."""
    ends: list[tuple[int, float]]
    guesses: dict[tuple[int, tuple[int, ...], bool], tuple[Guessed, float]] = field(default_factory=dict)
    """By the samples heard, what had to be said and whether its places were wanted: the answer, and the seconds it
    took. Drafts change no text."""


@dataclass
class Score:
    kept: list[bool] = field(default_factory=list)
    """For each utterance: what was promised is how the text begins, at every moment."""
    lags: list[float] = field(default_factory=list)
    """For each word: seconds from its end until it was promised, at the latest at the utterance's end."""
    early: list[bool] = field(default_factory=list)
    """For each word: promised before the utterance's end."""
    spent: float = 0.0
    heard: float = 0.0


class Asking:
    """The engine, one job at a time."""

    def __init__(self, engine: WhisperEngine) -> None:
        self._engine = engine

    def ask(self, job: Transcribe | Guess) -> tuple[list[Event], float]:
        """All that is answered, and the seconds it took."""
        said: list[Event] = []
        began = time.perf_counter()
        self._engine.admit(job, said.append)
        while self._engine.busy:
            self._engine.step()
        return said, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partials", description=__doc__)
    parser.add_argument("--model", default="whisper-base", help="a starter's name (default: whisper-base)")
    parser.add_argument("--step", type=float, action="append", help="seconds of growth (default: 0.5 and 1.0)")
    parser.add_argument("--clips", type=int, default=40, help="how many recordings (default: 40)")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    options = parser.parse_args()
    console = Console()
    if not MANIFEST.is_file():
        console.print(f"no recordings: {MANIFEST} is not there")
        return
    engine = build(WhisperSettings(options.model, str(options.data_dir), offline=True), lambda loading: None)
    asking, silero = Asking(engine), Silero()
    with tempfile.TemporaryDirectory() as folder:
        spoken = [
            each
            for number, clip in enumerate(clips(options.clips, english_only=options.model.endswith(".en")))
            for each in utterances(asking, silero, clip, Path(folder) / str(number))
        ]
        console.print(f"{options.model}: {len(spoken)} utterances, {sum(each.audio.seconds for each in spoken):.0f} s")
        for step in options.step or (0.5, 1.0):
            scores = {name: Score() for name in POLICIES}
            for utterance in spoken:
                for name, policy in POLICIES.items():
                    follow(asking, utterance, policy(), round(step * SAMPLE_RATE), scores[name])
            console.print(table(step, scores))


def clips(count: int, *, english_only: bool) -> list[Path]:
    """Recordings of up to LONGEST_S with speech, spread over the corpus."""
    rows = [json.loads(line) for line in MANIFEST.read_text().splitlines()]
    rows = [row for row in rows if row["duration_s"] <= LONGEST_S and row["transcript_status"] != "no speech"]
    english = [row for row in rows if row["language"] == "en"]
    others = [] if english_only else [row for row in rows if row["language"] != "en"]
    chosen = _spread(others, count - count // ENGLISH) + _spread(english, count // ENGLISH if others else count)
    return [MANIFEST.parent / row["file"] for row in chosen]


def _spread(rows: Sequence[dict[str, str]], count: int) -> list[dict[str, str]]:
    return [rows[number * len(rows) // count] for number in range(min(count, len(rows)))]


def utterances(asking: Asking, silero: Silero, clip: Path, spool: Path) -> Iterator[Spoken]:
    """A recording's utterances as a session finds and transcribes them."""
    samples = (read(str(clip)) * 32768).astype("<i2")
    samples.tofile(spool)
    windows = np.pad(samples.astype(np.float32) / np.float32(32768), (0, -len(samples) % WINDOW)).reshape(-1, WINDOW)
    segmenter = Segmenter(THRESHOLD, MIN_SPEECH_MS, SILENCE_MS)
    levels = [float(level) for level in np.sqrt((windows**2).mean(axis=1))]
    found = [*segmenter.feed(silero.listen(windows, Memory()), levels), *segmenter.end(len(samples))]
    decoding = Decoding(audio_ctx="auto")
    for each in found:
        if isinstance(each, Utterance):
            spoken, end = transcribed(asking, Pcm(str(spool), each.start, each.stop), decoding)
            yield spoken
            sure = (end.language_probability or 0.0) >= SURE
            decoding = msgspec.structs.replace(
                decoding,
                before=(decoding.before + spoken.text)[-TAIL:] if spoken.trusted else "",
                language=end.language if sure else decoding.language,
            )


def transcribed(asking: Asking, audio: Pcm, decoding: Decoding) -> tuple[Spoken, Transcribed]:
    """What is committed, and how that ended."""
    speech = (Span(0, audio.stop - audio.start),)
    events, _ = asking.ask(Transcribe(audio, decoding=decoding, urgent=True, speech=speech))
    (*_, end) = events
    assert isinstance(end, Transcribed)
    segments = [event for event in events if isinstance(event, Segment)]
    text = "".join(segment.text for segment in segments)
    trusted = all(segment.temperature <= DISTRUSTED for segment in segments[-1:])
    timed = msgspec.structs.replace(decoding, words=True)
    events, _ = asking.ask(Transcribe(audio, decoding=timed, urgent=True, speech=speech))
    ends, length = [], 0
    for word in (word for event in events if isinstance(event, Segment) for word in event.words or ()):
        length += len(word.word)
        ends.append((length, word.end))
    return Spoken(audio, decoding, text, trusted, ends), end


def follow(asking: Asking, spoken: Spoken, policy: Policy, step: int, score: Score) -> None:
    """One utterance as it grows."""
    length = spoken.audio.stop - spoken.audio.start
    shown: list[tuple[float, str]] = []
    for samples in (*range(step, length, step), length):
        guessed, seconds = _guess(asking, spoken, policy, samples)
        shown.append((samples / SAMPLE_RATE, policy.update(guessed, samples / SAMPLE_RATE)[1]))
        score.spent += seconds
    score.heard += spoken.audio.seconds
    score.kept.append(all(spoken.text.startswith(stable) for _, stable in shown))
    for characters, end in spoken.ends:
        promised = (at for at, stable in shown if len(stable) >= characters and spoken.text.startswith(stable))
        at = next(promised, spoken.audio.seconds)
        score.lags.append(at - end)
        score.early.append(at < spoken.audio.seconds)


def _guess(asking: Asking, spoken: Spoken, policy: Policy, samples: int) -> tuple[Guessed, float]:
    key = (samples, policy.said, isinstance(policy, AlignAtt))
    if key not in spoken.guesses:
        audio = Pcm(spoken.audio.path, spoken.audio.start, spoken.audio.start + samples)
        job = Guess(audio, decoding=spoken.decoding, said=policy.said, draft=policy.draft, listening=key[2])
        (answer,), seconds = asking.ask(job)
        assert isinstance(answer, Guessed)
        spoken.guesses[key] = answer, seconds
    return spoken.guesses[key]


def table(step: float, scores: dict[str, Score]) -> Table:
    shown = Table(f"a guess every {step} s", "kept", "lag, s", "before the end", "ms for 1 s of audio")
    for name, score in scores.items():
        cost = 1000 * score.spent / score.heard
        shown.add_row(
            name, f"{mean(score.kept):.1%}", f"{mean(score.lags):.2f}", f"{mean(score.early):.0%}", f"{cost:.0f}"
        )
    return shown


def _text(words: Sequence[GuessedWord]) -> str:
    return "".join(word.text for word in words)


if __name__ == "__main__":
    main()
