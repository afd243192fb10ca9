"""What a language model said, as the bodies and chunks of OpenAI's two completion protocols. Pure functions of events.

`Collected` makes a whole answer, `Chunks` a streamed one; how a choice is written is service/dialects.py's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from protocol.events import ChoiceEnded, Delta, Generated, Ready, Spent, Started
from service.dialects import Body, Choice, Dialect, finite, joined


@dataclass(frozen=True)
class Head:
    """What stands in every body and chunk of one answer. `created`: seconds since 1970."""

    id: str
    created: int
    model: str
    fingerprint: str | None

    def body(self, kind: str) -> Body:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def fingerprint(ready: Ready | None) -> str | None:
    """The same as long as the same request and seed give the same answer; None while no worker is there."""
    if ready is None or ready.model is None:
        return None
    told = msgspec.json.encode([ready.model.id, ready.model.parameters, ready.model.dtype, ready.backend])
    return f"fp_{hashlib.blake2s(told).hexdigest()[:10]}"


@dataclass(frozen=True)
class Usage:
    """Tokens of a whole request, however many prompts and choices it has."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    grammar: Literal["enforced", "hint"] | None = None
    """What became of the shape that was asked for."""
    forced: int = 0
    guessed: int = 0
    adapter: str | None = None
    """The one that it was written with."""
    spent: Spent = field(default_factory=Spent)
    """Of the slowest job, phase by phase."""

    def plus(self, event: Generated | ChoiceEnded) -> Usage:
        if isinstance(event, ChoiceEnded):
            return replace(self, reasoning=self.reasoning + event.reasoning_tokens)
        names = Spent.__struct_fields__
        return replace(
            self,
            prompt=self.prompt + event.prompt_tokens,
            cached=self.cached + event.cached_tokens,
            completion=self.completion + event.completion_tokens,
            grammar="hint" if "hint" in (self.grammar, event.grammar) else self.grammar or event.grammar,
            forced=self.forced + event.forced_tokens,
            guessed=self.guessed + event.guessed_tokens,
            adapter=event.adapter,
            spent=Spent(*(max(getattr(self.spent, name), getattr(event.spent, name)) for name in names)),
        )

    def body(self) -> Body:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }

    def meta(self, model: str, total_s: float) -> Body:
        """The value of the key `starling`. Times are in milliseconds."""
        spent = {name: round(getattr(self.spent, name), 3) for name in Spent.__struct_fields__}
        timings = {**spent, "total": round(total_s * 1000, 3)}
        shaped = {} if self.grammar is None else {"grammar": self.grammar, "forced_tokens": self.forced}
        guessed = {"guessed_tokens": self.guessed} if self.guessed else {}
        adapted = {"adapter": self.adapter} if self.adapter else {}
        return {"model": model, **adapted, "cached_tokens": self.cached, **shaped, **guessed, "timings": timings}


class Collected:
    """Events of a request to its whole body. `choices`: of each prompt; `asked`: how many of them are wanted."""

    def __init__(self, dialect: Dialect, *, choices: int, asked: int) -> None:
        self._dialect = dialect
        self._choices = choices
        self._asked = asked
        self._deltas: dict[int, list[Delta]] = {}
        self._ended: dict[int, ChoiceEnded] = {}
        self._usage = Usage()

    def take(self, event: Started | Delta | ChoiceEnded | Generated) -> None:
        match event:
            case Delta():
                self._deltas.setdefault(event.choice, []).append(event)
            case ChoiceEnded():
                self._ended[event.choice] = event
                self._usage = self._usage.plus(event)
            case Generated():
                self._usage = self._usage.plus(event)
            case Started():
                pass

    def body(self, head: Head, total_s: float) -> Body:
        made = [_gathered(self._deltas.get(index, ()), ended) for index, ended in sorted(self._ended.items())]
        kept = [
            choice
            for first in range(0, len(made), self._choices)
            for choice in best(made[first : first + self._choices], self._asked)
        ]
        choices = [self._dialect.whole(replace(choice, index=index)) for index, choice in enumerate(kept)]
        return {
            **head.body(self._dialect.object),
            "choices": choices,
            "usage": self._usage.body(),
            "starling": self._usage.meta(head.model, total_s),
        }


def _gathered(deltas: Iterable[Delta], ended: ChoiceEnded) -> Choice:
    deltas = list(deltas)
    return Choice(
        index=ended.choice,
        text="".join(delta.text for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        said=tuple(token for delta in deltas for token in delta.said),
        ended=ended,
        calls=joined(part for delta in deltas for part in delta.calls),
    )


def best(choices: Sequence[Choice], asked: int) -> list[Choice]:
    """The `asked` choices whose tokens are likeliest on average, the best first; all of them as they came."""
    if asked >= len(choices):
        return list(choices)

    def likelihood(choice: Choice) -> float:
        return sum(finite(token.logprob) for token in choice.said) / max(len(choice.said), 1)

    return sorted(choices, key=likelihood, reverse=True)[:asked]


def _apart(delta: Delta) -> Iterator[Delta]:
    """Text and parts of calls each by themselves: clients expect a call's name before its arguments."""
    if not delta.calls:
        yield delta
        return
    if delta.text or delta.reasoning or delta.said:
        yield msgspec.structs.replace(delta, calls=())
    for part in delta.calls:
        yield Delta(delta.choice, calls=(part,))


class Chunks:
    """Events of a request to the chunks of its stream. `choices`: of all prompts together.

    `usage`: the client wants it. Then every chunk has the key, and one more chunk its value.
    """

    def __init__(self, head: Head, dialect: Dialect, *, choices: int, usage: bool) -> None:
        self._head = head.body(dialect.chunk)
        self._model = head.model
        self._dialect = dialect
        self._nulls: Body = {"usage": None} if usage else {}
        self._open = choices
        self._begun: set[int] = set()
        self._last: Body | None = None
        self._usage = Usage()

    def take(self, event: Started | Delta | ChoiceEnded | Generated) -> Iterator[Mapping[str, Any]]:
        match event:
            case Delta():
                for delta in _apart(event):
                    if said := self._dialect.goes_on(delta):
                        yield from self._begin(delta.choice, delta)
                        yield self._chunk(said)
            case ChoiceEnded():
                self._usage = self._usage.plus(event)
                yield from self._begin(event.choice)
                self._open -= 1
                if self._open:
                    yield self._chunk(self._dialect.ends(event))
                else:
                    self._last = self._chunk(self._dialect.ends(event))
            case Generated():
                self._usage = self._usage.plus(event)
            case Started():
                pass

    def end(self, total_s: float) -> Iterator[Mapping[str, Any]]:
        """After all events. The last choice's last chunk has waited until here, for what is known at the end."""
        assert self._last is not None, "no choice has ended"
        yield {**self._last, "starling": self._usage.meta(self._model, total_s)}
        if self._nulls:
            yield {**self._head, "choices": [], "usage": self._usage.body()}

    def _begin(self, index: int, delta: Delta | None = None) -> Iterator[Body]:
        if index not in self._begun:
            self._begun.add(index)
            if first := self._dialect.begins(index, delta):
                yield self._chunk(first)

    def _chunk(self, choice: Body) -> Body:
        return {**self._head, "choices": [choice], **self._nulls}
