"""The starter through the engine, against mlx-lm's own `generate` on its own modules: ids for ids."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from protocol.jobs import Generation
from tests.workers.llm.toy import Driver, ToyLanguage, ToyPiece, ToyPrompt, ToyVoice, complete

pytestmark = [pytest.mark.model, pytest.mark.filterwarnings("default:near tie")]

TOKENS = 12
NEAR_TIE = 0.01
"""Logits closer than this may change places when they are summed in another order."""

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

    def voice(self, generation: Generation, prompt: ToyPrompt) -> ToyVoice:
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
    from mlx_lm import stream_generate

    def answer(ids: Sequence[int]) -> list[int]:
        answers = stream_generate(stock_llm.network, stock_llm.tokenizer, list(ids), max_tokens=TOKENS)
        return [each.token for each in answers if each.token not in stock_llm.tokenizer.eos_token_ids]

    return [answer(ids) for ids in prompts]


@pytest.fixture
def driver(llm: Any) -> Driver:
    ends = frozenset(llm.tokenizer.eos_token_ids)
    return Driver(llm.network, Ids(ends), vocabulary=llm.vocabulary, head=llm.head, cache_bytes=0)


def flips(stock: Any, prompt: Sequence[int], ours: list[int], theirs: list[int]) -> list[str]:
    """What to say of an answer that parts from mlx-lm's: nothing where it does so at a near tie of its logits."""
    import mlx.core as mx

    if ours == theirs:
        return []
    place = next(at for at, (a, b) in enumerate(zip([*ours, -1], [*theirs, -1], strict=False)) if a != b)
    logits = stock.network(mx.array([[*prompt, *theirs[:place]]]))[0, -1]
    end = stock.tokenizer.eos_token_id
    one, other = (each[place] if place < len(each) else end for each in (ours, theirs))
    gap = abs(logits[one].item() - logits[other].item())
    found = f"token {place}: {one} ({logits[one].item():.4f}) for {other} ({logits[other].item():.4f})"
    if gap < NEAR_TIE:
        warnings.warn(f"near tie: {found}", stacklevel=2)
        return []
    return [found]


def test_each_answer_alone_is_mlx_lms(
    stock_llm: Any, driver: Driver, prompts: list[tuple[int, ...]], theirs: list[list[int]]
) -> None:
    for ids, wanted in zip(prompts, theirs, strict=True):
        driver.answer(complete(ids, tokens=TOKENS))
        assert flips(stock_llm, ids, driver.language.voices[ids].heard, wanted) == []


def test_eight_answers_together_are_mlx_lms(
    stock_llm: Any, driver: Driver, prompts: list[tuple[int, ...]], theirs: list[list[int]]
) -> None:
    for ids in prompts:
        driver.ask(complete(ids, tokens=TOKENS))
    driver.run()
    for ids, wanted in zip(prompts, theirs, strict=True):
        assert flips(stock_llm, ids, driver.language.voices[ids].heard, wanted) == []


def test_a_seed_answers_the_same_alone_and_among_seven(driver: Driver, prompts: list[tuple[int, ...]]) -> None:
    job = complete(prompts[1], tokens=TOKENS, temperature=0.8, top_p=0.9, seed=11)
    driver.answer(job)
    alone = driver.language.voices[prompts[1]].heard
    for ids in [*prompts[2:], prompts[0]]:
        driver.ask(complete(ids, tokens=TOKENS, temperature=0.8))
    driver.steps(3)
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
