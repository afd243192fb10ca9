"""`python -m benchmarks.fidelity`: whether answers are those of mlx-lm's own `generate`, alone and eight at a time.

Both read the same weights in float32 with the same BLAS, in this process. Where an answer parts from mlx-lm's, the two
tokens are told with mlx-lm's logits for them; so are draws of one seed that differ alone and among others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.conversations import Turns, conversations
from protocol.jobs import Chat, Generation
from service.config import Config
from workers.backend import start

NEAR_TIE = 0.01
"""Logits closer than this may change places when they are summed in another order."""
TOGETHER = 8


@dataclass(frozen=True)
class Flip:
    """Where an answer parts from another: the tokens, be it the end of the text, and mlx-lm's logits for them."""

    place: int
    ours: int
    theirs: int
    logits: tuple[float, float]

    @property
    def near_tie(self) -> bool:
        return abs(self.logits[0] - self.logits[1]) < NEAR_TIE

    def __str__(self) -> str:
        return f"token {self.place}: {self.ours} ({self.logits[0]:.4f}) for {self.theirs} ({self.logits[1]:.4f})"


def flip(stock: Any, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> Flip | None:
    """The first place where two answers to `prompt` differ. stock: mlx-lm's model, as workers.llm.load.Loaded."""
    import mlx.core as mx

    if list(ours) == list(theirs):
        return None
    both = zip([*ours, -1], [*theirs, -1], strict=False)
    place = next(at for at, (one, other) in enumerate(both) if one != other)
    logits = np.array(stock.network(mx.array([[*prompt, *theirs[:place]]]))[0, -1])
    end = stock.tokenizer.eos_token_id
    one, other = (int(each[place]) if place < len(each) else end for each in (ours, theirs))
    return Flip(place, one, other, (float(logits[one]), float(logits[other])))


def reference(stock: Any, prompt: Sequence[int], tokens: int) -> tuple[list[int], str]:
    """What mlx-lm's `generate` answers: ids without the end, and text."""
    from mlx_lm import stream_generate

    ids, text = [], ""
    for each in stream_generate(stock.network, stock.tokenizer, list(prompt), max_tokens=tokens):
        text += each.text
        if each.token not in stock.tokenizer.eos_token_ids:
            ids.append(each.token)
    return ids, text


class Noted:
    """A Voice that notes what it is fed."""

    def __init__(self, voice: Any) -> None:
        self._voice = voice
        self.heard: list[int] = []

    def feed(self, token: int, *rest: Any) -> Any:
        self.heard.append(token)
        return self._voice.feed(token, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._voice, name)


def language(loaded: Any) -> Any:
    """The model's, with `voices` by prompt."""
    from workers.llm.language import ModelLanguage

    class Noting(ModelLanguage):
        voices: dict[tuple[int, ...], Noted]

        def voice(self, generation: Generation, prompt: Any, calls: Sequence[str] = ()) -> Any:
            self.voices[prompt.ids] = Noted(super().voice(generation, prompt))
            return self.voices[prompt.ids]

    made = Noting(loaded.tokenizer, loaded.model.context_window, vocabulary=loaded.vocabulary, trace_text=False)
    made.voices = {}
    return made


class Ours:
    """The engine over the tuned model, without a cache: every answer is computed from its prompt on."""

    def __init__(self, loaded: Any) -> None:
        from tests.workers.llm.toy import Driver

        self._language = language(loaded)
        self._driver = Driver(
            loaded.network, self._language, vocabulary=loaded.vocabulary, head=loaded.head, cache_bytes=0
        )

    def ids(self, job: Chat) -> tuple[int, ...]:
        """Of the prompt."""
        found: tuple[int, ...] = self._language.render(job).ids
        return found

    def answers(self, jobs: Sequence[Chat], at_once: int) -> list[tuple[list[int], str]]:
        """Ids and text of each, so many decoded together."""
        found = []
        for first in range(0, len(jobs), at_once):
            asked = [(job, self._driver.ask(job)) for job in jobs[first : first + at_once]]
            self._driver.run()
            found += [(self._language.voices[self.ids(job)].heard, each.text()) for job, each in asked]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer (default: 32)")
    parser.add_argument("--every", type=int, default=1, help="ask each N-th question only")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="as --llm-model of `starling serve`")
    parser.add_argument("--data-dir", default=Config().data_dir, help="where the models are")
    options = parser.parse_args()
    start(str(Path(options.data_dir)), lambda _: None, few=True)
    from tests.workers.llm.toy import chat
    from workers.llm.load import load

    def loaded(tuned: bool) -> Any:
        return load(options.model, data_dir=options.data_dir, offline=True, report=lambda _: None, tuned=tuned)

    asked = conversations()[:: options.every]
    stock, ours = loaded(False), Ours(loaded(True))
    greedy = [chat(*turns, tokens=options.tokens) for turns in asked]
    prompts = [ours.ids(job) for job in greedy]
    sizes = sorted(map(len, prompts))
    print(f"{len(asked)} conversations of {sizes[0]} to {sizes[-1]} tokens, {options.tokens} tokens of answer at most")
    theirs = [reference(stock, ids, options.tokens) for ids in prompts]
    parted = 0
    for name, at_once in (("alone", 1), (f"{TOGETHER} together", TOGETHER)):
        parted += _compare(f"greedy, {name}", stock, asked, prompts, ours.answers(greedy, at_once), theirs)
    seeded = [chat(*turns, tokens=options.tokens, temperature=1.0, seed=7) for turns in asked]
    alone, among = ours.answers(seeded, 1), ours.answers(seeded, TOGETHER)
    _compare("one seed at temperature 1, together against alone", stock, asked, prompts, among, alone)
    sys.exit(parted > 0)


def _compare(
    name: str,
    stock: Any,
    asked: Sequence[Turns],
    prompts: Sequence[tuple[int, ...]],
    ours: Sequence[tuple[list[int], str]],
    theirs: Sequence[tuple[list[int], str]],
) -> int:
    """How many answers part from the others at what is no near tie; says so of each that does."""
    flips = [flip(stock, *each) for each in zip(prompts, _ids(ours), _ids(theirs), strict=True)]
    same = sum(found is None for found in flips)
    texts = sum(one[1] == other[1] for one, other in zip(ours, theirs, strict=True))
    print(f"{name}: {same} of {len(flips)} the same in ids, {texts} in text, {sum(map(len, _ids(ours)))} tokens")
    for turns, found in zip(asked, flips, strict=True):
        if found is not None:
            print(f"  {turns[-1][:40]!r}: {found}{' near tie' if found.near_tie else ''}")
    return sum(found is not None and not found.near_tie for found in flips)


def _ids(answers: Sequence[tuple[list[int], str]]) -> list[list[int]]:
    return [ids for ids, _ in answers]


if __name__ == "__main__":
    main()
