"""The starter through the engine, against mlx-lm's own `generate` on its own modules: ids for ids."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.fidelity import flip, reference
from protocol.jobs import Generation
from tests.workers.llm.toy import Driver, ToyLanguage, ToyPiece, ToyPrompt, ToyVoice, complete

pytestmark = [pytest.mark.model, pytest.mark.filterwarnings("default:near tie")]

TOKENS = 12

QUESTIONS = [
    "What is the capital of France?",
    "Write a short poem about rain.",
    "Explain photosynthesis in one sentence.",
    "List three fruits.",
    "Translate to German: good morning, my friend.",
    "Why is the sky blue? " * 12,
    "What is 17 times 3?",
    "Tell me a joke about a cat and a dog.",
]


class Listener(ToyVoice):
    """Says nothing and notes what it is fed."""

    def __init__(self) -> None:
        super().__init__((), False)
        self.heard: list[int] = []

    def feed(self, token: int, logprob: float = 0.0, likeliest: Sequence[tuple[int, float]] = ()) -> ToyPiece:
        self.heard.append(token)
        return ToyPiece()


class Ids(ToyLanguage):
    """Prompts are ids already; answers are compared as ids too."""

    def __init__(self, ends: frozenset[int]) -> None:
        super().__init__(ends)
        self.voices: dict[tuple[int, ...], Listener] = {}

    def room(self, prompt: ToyPrompt, tokens: int, max_tokens: int | None) -> int:
        return max_tokens or 1

    def voice(self, generation: Generation, prompt: ToyPrompt, calls: Sequence[str] = ()) -> ToyVoice:
        self.voices[prompt.ids] = Listener()
        return self.voices[prompt.ids]


@pytest.fixture(scope="module")
def prompts(llm: Any) -> list[tuple[int, ...]]:
    def render(question: str) -> tuple[int, ...]:
        messages = [{"role": "user", "content": question}]
        return tuple(llm.tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    return [render(question) for question in QUESTIONS]


@pytest.fixture(scope="module")
def theirs(stock_llm: Any, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    return [reference(stock_llm, ids, TOKENS)[0] for ids in prompts]


@pytest.fixture
def driver(llm: Any) -> Driver:
    ends = frozenset(llm.tokenizer.eos_token_ids)
    return Driver(llm.network, Ids(ends), vocabulary=llm.vocabulary, head=llm.head, cache_bytes=0)


def parted(stock: Any, prompt: Sequence[int], ours: list[int], theirs: list[int]) -> list[str]:
    """What to say of an answer that parts from mlx-lm's: nothing where it does so at a near tie of its logits."""
    found = flip(stock, prompt, ours, theirs)
    if found is not None and found.near_tie:
        warnings.warn(f"near tie: {found}", stacklevel=2)
        return []
    return [] if found is None else [str(found)]


def test_each_answer_alone_is_mlx_lms(
    stock_llm: Any, driver: Driver, prompts: list[tuple[int, ...]], theirs: list[list[int]]
) -> None:
    for ids, wanted in zip(prompts, theirs, strict=True):
        driver.answer(complete(ids, tokens=TOKENS))
        assert parted(stock_llm, ids, driver.language.voices[ids].heard, wanted) == []


def test_eight_answers_together_are_mlx_lms(
    stock_llm: Any, driver: Driver, prompts: list[tuple[int, ...]], theirs: list[list[int]]
) -> None:
    for ids in prompts:
        driver.ask(complete(ids, tokens=TOKENS))
    driver.run()
    for ids, wanted in zip(prompts, theirs, strict=True):
        assert parted(stock_llm, ids, driver.language.voices[ids].heard, wanted) == []


@pytest.mark.parametrize("fields", [{"temperature": 0.8, "top_p": 0.9}, {"temperature": 1.2}])
def test_a_seed_answers_the_same_alone_and_among_seven(
    driver: Driver, prompts: list[tuple[int, ...]], fields: dict[str, float]
) -> None:
    """Whoever is beside it, whenever it joins, and in pieces of whatever size its prompt is read."""
    job = complete(prompts[1], tokens=20, seed=11, **fields)  # type: ignore[arg-type]
    driver.answer(job)
    alone = driver.language.voices[prompts[1]].heard
    for before in (1, 3):
        for ids in [*prompts[2:], prompts[0]]:
            driver.ask(complete(ids, tokens=TOKENS, temperature=0.8))
        driver.steps(before)
        driver.ask(job)
        driver.run()
        assert driver.language.voices[prompts[1]].heard == alone
    assert len(alone) > 3


def test_a_next_turn_says_what_a_cold_cache_says(llm: Any, prompts: list[tuple[int, ...]]) -> None:
    ends = frozenset(llm.tokenizer.eos_token_ids)
    said = []
    for cache_bytes in (64 << 20, 0):
        driver = Driver(llm.network, Ids(ends), vocabulary=llm.vocabulary, head=llm.head, cache_bytes=cache_bytes)
        first = driver.answer(complete(prompts[0], tokens=TOKENS))
        whole = (*prompts[0], *driver.language.voices[prompts[0]].heard, *prompts[3])
        second = driver.answer(complete(whole, tokens=TOKENS))
        said.append(driver.language.voices[whole].heard)
        assert first.started.cached_tokens == 0
        assert second.started.cached_tokens == (len(whole) - len(prompts[3]) if cache_bytes else 0)
    assert said[0] == said[1]
