"""How a recording is heard: its mel, the language, an encoded window, the prompt. What transcripts and guesses share.

Knows the model's needs; decodes nothing and keeps no text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from protocol.jobs import Decoding, Task
from workers.whisper.decoding.attempt import Limits
from workers.whisper.decoding.fallback import Kit, Prompt
from workers.whisper.mel import N_FRAMES, LogMel
from workers.whisper.needs import Encode, Floats, Pause, Prefill, Steps
from workers.whisper.segments import FRAMES_PER_TOKEN, Window
from workers.whisper.tokenizer import Tokenizer

if TYPE_CHECKING:
    from workers.whisper.model import Encoded

SCAN_FRAMES = 60_000
"""Ten minutes of mel in one turn: about 0.1 s."""
AUTO_MARGIN = 150
"""Encoder frames, 3 s, that `auto` grants beyond the audio: fewer than 2 s made loops (cpu-speed.md, section 3)."""
FASTEST = 20
"""Tokens a second that speech may take, and as many to begin with."""
LIKELY = 0.8
"""The probability of a language that is not looked at twice: of a second or two of speech even 0.7 was wrong."""


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


class Hearing:
    """One recording's. `tongue` and `spent` are its job's."""

    def __init__(self, kit: Kit, task: Task, decoding: Decoding, mel: LogMel, tongue: Tongue, spent: Spent) -> None:
        self._kit = kit
        self._task = task
        self._decoding = decoding
        self.mel = mel
        self._tongue = tongue
        self._spent = spent

    def scan(self) -> Steps[None]:
        """Before the first window."""
        while True:
            with self._spent.watch("mel"):
                if self.mel.scan(SCAN_FRAMES):
                    return
            yield Pause()

    def encode(self, window: Window, *, full: bool = False, hasty: bool = False) -> Steps[Encoded]:
        """A window in the context that the job asks for, or the full one; with the first, the language is known.

        `hasty`: the first idea of the language will do.
        """
        with self._spent.watch("mel"):
            mel = self.mel.window(window.seek, window.size)
        context = self._kit.dims.n_audio_ctx if full else self._context(window)
        encoded: Encoded = yield Encode(mel, context)
        if self._tongue.code is None:
            yield from self._detect(encoded, unsure=window.size < N_FRAMES and not hasty)
        return encoded

    def is_guarded(self, encoded: Encoded) -> bool:
        """Whether `auto` chose a context that may make loops."""
        return encoded.context < self._kit.dims.n_audio_ctx and self._decoding.audio_ctx == "auto"

    def limits(self, seconds: float) -> Limits:
        """What can be said in so much of a window: for `auto`, no more than anybody could say in so short a time.
        Loops and inventions would take 224 tokens at every temperature, half a minute for a word."""
        limits = self._kit.limits
        if self._decoding.audio_ctx != "auto":
            return limits
        return Limits(min(limits.sampled, round(FASTEST * (1 + seconds))), limits.context)

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

        The reference listens to the audio and the silence after it in the full context, where a window to decode ends
        in zeros and `auto` gives a short one less. That costs an encoding more, so it is done only if `unsure` and no
        language is likely.
        """
        tokenizer = self._kit.tokenizer
        codes = [code for code in self._decoding.languages if code in tokenizer.languages] or tokenizer.languages
        if len(codes) == 1:
            self._tongue.code = codes[0]
            return
        _, logits = yield Prefill(encoded, (tokenizer.sot,), (0,))
        code, probability = likeliest_language(logits[0], tokenizer, codes)
        if unsure and probability < LIKELY:
            encoded = yield Encode(self.mel.window(0, N_FRAMES), self._kit.dims.n_audio_ctx)
            _, logits = yield Prefill(encoded, (tokenizer.sot,), (0,))
            code, probability = likeliest_language(logits[0], tokenizer, codes)
        self._tongue.code, self._tongue.probability = code, probability

    def prompt(self, said: Sequence[int], past: tuple[int, ...] = ()) -> Prompt:
        """[mark, what was said] and the opening; without anything said, the opening alone. `past`: how the window
        begins."""
        tokenizer = self._kit.tokenizer
        before = (tokenizer.sot_prev, *said) if said else ()
        opening = self.opening
        if self._decoding.without_timestamps:
            opening = (*opening, tokenizer.no_timestamps)
        return Prompt((*before, *opening, *past), len(before), past)

    @property
    def language(self) -> str:
        """Known once a window is encoded."""
        assert self._tongue.code is not None
        return self._tongue.code

    @property
    def opening(self) -> tuple[int, ...]:
        return self._kit.tokenizer.opening(self.language, self._task)


def likeliest_language(logits: Floats, tokenizer: Tokenizer, codes: tuple[str, ...] | list[str]) -> tuple[str, float]:
    """logits: (vocab,) behind the start of the transcript -> code, and its probability among `codes`."""
    chosen = logits[[tokenizer.language_token(code) for code in codes]]
    weights = np.exp(chosen - chosen.max())
    best = int(weights.argmax())
    return codes[best], float(weights[best] / weights.sum())
