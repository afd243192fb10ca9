"""What is being said right now: guesses at the open utterance, as long as nobody waits for anything better. They are
shown where partial texts are wanted, and a draft of the utterance everywhere.

Knows the speech worker's Guess; what of a guess is stable is partials.py's.
"""

from __future__ import annotations

import logging

import msgspec

from protocol.errors import Failure
from protocol.events import Guessed
from protocol.jobs import Guess, Pcm, Span
from protocol.settings import SAMPLE_RATE
from service import reply
from service.dictation.bell import Bell, Errand
from service.dictation.context import hearing
from service.dictation.listening import Listener
from service.dictation.partials import Partials
from service.dictation.store import Stored
from service.dictation.story import Story, seconds
from service.dictation.turns import Turns
from service.dictation.writing import Writer
from service.worker import Worker

SHORTEST = SAMPLE_RATE // 2
"""Samples of an utterance that are worth a guess: with less of it Whisper invents."""
GROWTH = SAMPLE_RATE * 3 // 10
"""Samples that must have come since the last guess. A slow machine's guesses take longer than that, and are rarer."""
UNSEEN_GROWTH = 2 * SAMPLE_RATE
"""The same where nobody wants partial texts: the guess is then but a draft, which lets the utterance's own
transcription check a run of tokens in one pass instead of saying them one by one."""
LONGEST = 30 * SAMPLE_RATE

log = logging.getLogger("starling.dictation")


class Guesser:
    """One session's. It yields to the writer, and is called off when that has something to do."""

    def __init__(
        self, stored: Stored, story: Story, listener: Listener, whisper: Worker, model: str, turns: Turns
    ) -> None:
        self._spec = stored.spec
        self._pcm = str(stored.pcm)
        self._story = story
        self._listener = listener
        self._whisper = whisper
        self._model = model
        self._turns = turns
        self._errand = Errand()
        self._start = -1
        """Of the utterance that `_partials` is about."""
        self._partials = Partials()
        self._guessed = 0
        """Samples of the session when the last guess was asked for."""

    def draft(self, start: int) -> tuple[int, ...]:
        """Tokens that the utterance which starts there will probably say."""
        return self._partials.draft if start == self._start else ()

    def reconsider(self, writer: Writer) -> None:
        """The utterance has ended, or there is better to do."""
        if self._errand.busy and (self._listener.open != self._start or not writer.idle):
            self._errand.call_off()

    async def run(self, bell: Bell, writer: Writer) -> None:
        """Until cancelled."""
        while True:
            await bell.until(lambda: self._is_worth_it(writer))
            async with self._turns.guesses:
                if self._is_worth_it(writer):
                    await self._guess()

    def _is_worth_it(self, writer: Writer) -> bool:
        start, samples = self._listener.open, self._listener.samples
        if start is None or not writer.idle:
            return False
        shortest, growth = (SHORTEST, GROWTH) if self._spec.partials else (UNSEEN_GROWTH, UNSEEN_GROWTH)
        return samples - start >= shortest if start != self._start else samples - self._guessed >= growth

    async def _guess(self) -> None:
        start, stop = self._listener.open, self._listener.samples
        assert start is not None
        if start != self._start:
            self._start, self._partials = start, Partials()
        self._guessed = stop
        span = Span(start, min(stop, start + LONGEST))
        how = hearing(self._spec, self._story, span, self._model)
        job = Guess(
            Pcm(self._pcm, how.start, span.stop),
            self._spec.task,
            # A guess must be quick, also where the text itself takes more of a window.
            msgspec.structs.replace(how.decoding, audio_ctx=self._spec.decoding.audio_ctx),
            said=self._partials.said,
            draft=self._partials.draft,
            context=how.context,
        )
        try:
            guessed = await self._errand.run(reply.guessed(self._whisper, job))
        except Failure as failure:
            # A guess is a courtesy: the next one comes when more was said, and the text itself is not touched.
            log.info("no partial text: %s", failure.message)
            return
        if guessed is not None and self._listener.open == start:
            self._show(guessed, stop)

    def _show(self, guessed: Guessed, stop: int) -> None:
        text, stable = self._partials.update(guessed, (stop - self._start) / SAMPLE_RATE)
        if not self._spec.partials:
            return
        if not self._story.text:
            text, stable = text.lstrip(), stable.lstrip()
        if text:
            start = seconds(self._start)
            self._story.show({"type": "transcript.text.partial", "text": text, "stable": stable, "start": start})
