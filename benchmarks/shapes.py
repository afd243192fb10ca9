"""`python -m benchmarks --shapes`: what shapes and guesses gain and cost in one process, by the engine itself.

Each part compares two ways of saying the same number of tokens, in turn, and gives the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from protocol.events import ChoiceEnded, Event, Failed, Generated
from protocol.jobs import Chat, ChatMessage, Generation, Sampling, Shape
from protocol.settings import LlmSettings
from service.config import Config
from workers.llm.engine import LlmEngine, build

MODEL = "smollm2-135m-instruct"
ORDER = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string", "maxLength": 16},
        "shipping_address": {
            "type": "object",
            "properties": {
                "street_and_number": {"type": "string", "maxLength": 16},
                "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
                "country": {"enum": ["Austria", "Germany", "Switzerland"]},
            },
            "required": ["street_and_number", "postal_code", "country"],
            "additionalProperties": False,
        },
        "express_delivery_requested": {"type": "boolean"},
        "number_of_items": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["customer_name", "shipping_address", "express_delivery_requested", "number_of_items"],
    "additionalProperties": False,
}
TEXT = (
    "The harbour master wrote down every ship that came in during the storm, its name, its cargo and the number of men "
    "aboard, and sent the list to the governor before sunrise. Nobody in the town knew why the lighthouse had stayed "
    "dark, and the keeper, who was found asleep, could not say either."
)
REWRITE = f"Repeat this text exactly, word for word:\n\n{TEXT}"
PROSE = "Write a short essay about the sea, the wind and the people who live near them."
JSON = "Invent an order and give it as JSON."
MASKED = 160
"""Tokens of an answer whose shape allows any text."""

PARTS = ("json", "rewriting", "prose", "masks")


@dataclass
class Said:
    """One answer."""

    events: list[Event] = field(default_factory=list)

    @property
    def end(self) -> Generated:
        last = self.events[-1]
        if not isinstance(last, Generated):
            raise SystemExit(f"an answer failed: {last.message if isinstance(last, Failed) else last}")
        return last

    @property
    def over(self) -> bool:
        return any(isinstance(event, ChoiceEnded | Failed) for event in self.events)


def job(text: str, tokens: int, shape: Shape | None = None, *, endless: bool = False) -> Chat:
    """endless: no end of text, which is one of SmolLM2's first tokens, comes before `tokens`."""
    sampling = Sampling(temperature=0, logit_bias=((0, -100.0), (2, -100.0)) if endless else ())
    generation = Generation(sampling=sampling, max_tokens=tokens, shape=shape)
    return Chat((ChatMessage(role="user", content=text),), generation)


def seconds(engine: LlmEngine, *jobs: Chat) -> tuple[float, list[Said]]:
    """From the first token of the last job to the end of all; the prompts are read before."""
    said = [Said() for _ in jobs]
    for each, answer in zip(jobs, said, strict=True):
        engine.admit(each, answer.events.append)
    while engine.stats().rows < len(jobs) and not any(each.over for each in said):
        engine.step()
    begun = time.perf_counter()
    while engine.busy:
        engine.step()
    return time.perf_counter() - begun, said


def ratio(rounds: int, slow: Callable[[], float], fast: Callable[[], float]) -> tuple[float, float, float]:
    """(the median of slow / fast, the medians of both), in turn."""
    slow(), fast()
    pairs = [(slow(), fast()) for _ in range(rounds)]
    return median(a / b for a, b in pairs), median(a for a, _ in pairs), median(b for _, b in pairs)


def shaped(engine: LlmEngine, rounds: int) -> None:
    shape = Shape(kind="json", text=json.dumps(ORDER))
    _, (first,) = seconds(engine, job(JSON, 200, shape))
    tokens, forced = first.end.completion_tokens, first.end.forced_tokens
    found, slow, fast = ratio(
        rounds,
        lambda: seconds(engine, job(JSON, tokens, endless=True))[0],
        lambda: seconds(engine, job(JSON, 200, shape))[0],
    )
    print(
        f"JSON under a schema: {tokens} tokens, {forced} forced: {fast:.2f} s; "
        f"without one {slow:.2f} s: {found:.2f} times faster"
    )


def guessed(engine: LlmEngine, rounds: int, name: str, text: str, tokens: int) -> None:
    guesses = 0

    def run(guessing: bool) -> float:
        nonlocal guesses
        engine.guessing = guessing
        spent, (said,) = seconds(engine, job(text, tokens, endless=True))
        guesses = max(guesses, said.end.guessed_tokens)
        return spent

    found, slow, fast = ratio(rounds, lambda: run(False), lambda: run(True))
    engine.guessing = True
    print(
        f"{name}: {tokens} tokens, {guesses} guessed right: {fast:.2f} s; without guesses {slow:.2f} s: "
        f"{found:.3f} times faster"
    )


def masks(engine: LlmEngine, rounds: int) -> None:
    """A shape that allows any text forces nothing: what is left is the price of masks."""
    engine.guessing = False
    any_text = Shape(kind="regex", text="(.|\\n)*")

    def run(rows: int, shape: Shape | None) -> float:
        jobs = [job(f"{PROSE} Number {number}.", MASKED, shape, endless=True) for number in range(rows)]
        return seconds(engine, *jobs)[0]

    for rows in (1, 8):
        found, slow, fast = ratio(rounds, partial(run, rows, any_text), partial(run, rows, None))
        steps = f"{1e3 * slow / (MASKED - 1):.1f} and {1e3 * fast / (MASKED - 1):.1f} ms a step"
        print(f"masks at {rows} rows: {100 * (found - 1):.1f} % ({steps})")
    engine.guessing = True
    alone(engine)


def alone(engine: LlmEngine) -> None:
    """The same under a schema, without the network: mask, choice and step of the grammar for each token."""
    import numpy as np

    from workers.llm.guide import Guide
    from workers.llm.sampling import Resolved, Sampler

    language = engine.language
    asked = language.shape(Shape(kind="json", text=json.dumps(ORDER)))
    asked.wait(60)
    logits = np.random.default_rng(0).normal(size=engine.vocabulary).astype(np.float32)
    times: dict[bool, list[float]] = {True: [], False: []}
    for guided in (True, False) * 10:
        guide = Guide(asked.grammar())
        sampler = Sampler(Sampling(temperature=0), Resolved(0, 1, 0, 0), seed=0)
        for _ in range(60):
            begun = time.perf_counter()
            token = sampler.choose(logits, guide.allowed() if guided else None)
            if guided:
                guide.take(token)
                guide.forced()
            times[guided].append(time.perf_counter() - begun)
            if guide.over or token in language.ends:
                break
            logits = np.roll(logits, 7919)
    with_mask, without = (1e6 * sum(times[each]) / len(times[each]) for each in (True, False))
    print(f"a token under a schema, without the network: {with_mask:.0f} us; without a schema {without:.0f} us")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks --shapes", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="only these")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of each (default: 5)")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    options = parser.parse_args(arguments)
    engine = build(LlmSettings(model=MODEL, data_dir=str(options.data_dir)), lambda _: None)
    for part in options.part or PARTS:
        match part:
            case "json":
                shaped(engine, options.rounds)
            case "rewriting":
                guessed(engine, options.rounds, "rewriting a text", REWRITE, 64)
            case "prose":
                guessed(engine, options.rounds, "prose", PROSE, 64)
            case "masks":
                masks(engine, options.rounds)
