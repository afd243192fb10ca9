"""Shapes and guesses in the engine over a toy model: what is said, how it was come by, and whom it concerns."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from protocol.errors import Kind
from protocol.events import Failed, Generated
from protocol.jobs import Shape
from tests.workers.llm.toy import VOCABULARY, Asked, Driver, ToyLanguage, complete, network, shaped

DATE = Shape(kind="regex", text="date:[2-4]{4}_[ab]{2}_end_of_date[c-e]")
WORDS = Shape(kind="regex", text="([A-Z][a-z]{1,4}_){1,8}")
CHOICE = Shape(kind="choice", text=json.dumps(["tomato", "tomorrow", "potato"]))
CALL = Shape(kind="regex", text="f<[2-9]{1,3}>", trigger="a")


@pytest.fixture(scope="module")
def model(fast_blas: Any) -> Any:
    return network()


@pytest.fixture(scope="module")
def language(fast_blas: Any) -> ToyLanguage:
    """Only a shape or its length ends a text."""
    return shaped(ToyLanguage())


@pytest.fixture
def driver(model: Any, language: ToyLanguage) -> Driver:
    return Driver(model, language)


def generated(asked: Asked) -> Generated:
    assert isinstance(asked.last, Generated), asked.last
    return asked.last


def greedy(model: Any, prompt: str, shape: Shape, tokens: int) -> str:
    """What the network says greedily of what the shape allows, from the whole text for each token."""
    import mlx.core as mx
    import numpy as np

    from workers.llm.guide import Guide

    language = shaped(ToyLanguage())
    asked = language.shape(shape)
    asked.wait(20)
    guide = Guide(asked.grammar())
    ids = language.encode(prompt)
    said: list[int] = []
    while len(said) < tokens and not guide.over:
        logits = np.array(model(mx.array([ids + said]))[0, -1])
        allowed = guide.allowed()
        token = int(np.where(allowed, logits, -np.inf).argmax() if allowed is not None else logits.argmax())
        if token in language.ends:
            break
        said.append(token)
        guide.take(token)
    return language.decode(said)


@pytest.mark.parametrize("shape", [DATE, WORDS, CHOICE], ids=["date", "words", "choice"])
@pytest.mark.parametrize("prompt", ["abc", "Zebra", "lorem_ipsum"])
def test_a_shaped_answer_is_the_likeliest_text_of_that_shape(
    model: Any, driver: Driver, shape: Shape, prompt: str
) -> None:
    """One token is one character here: what is forced is what would have been said without forcing."""
    asked = driver.answer(complete(prompt, tokens=60, shape=shape))
    assert asked.text() == greedy(model, prompt, shape, 60)
    assert asked.ended[0].reason == "stop"
    assert generated(asked).grammar == "enforced"


def test_what_is_forced_takes_no_steps_of_its_own(driver: Driver, passes: list[int]) -> None:
    asked = driver.answer(complete("abc", tokens=60, shape=DATE))
    text = asked.text()
    assert re.fullmatch(DATE.text, text)
    # "date:", "_" and "_end_of_date"; every other character is sampled.
    assert generated(asked).forced_tokens == 5 + 1 + 12
    assert generated(asked).completion_tokens == len(text) == asked.ended[0].tokens
    assert driver.engine.stats().forced == 18
    sampled = len(text) - 18
    assert len(passes) <= sampled + 4


def test_a_forced_run_at_the_end_needs_no_step_at_all(driver: Driver) -> None:
    driver.answer(complete("abc", tokens=60, shape=Shape(kind="choice", text='["potato"]')))
    assert driver.engine.stats().fed == 0


def test_at_its_length_a_shaped_answer_is_a_beginning(driver: Driver) -> None:
    whole = driver.answer(complete("abc", tokens=60, shape=DATE)).text()
    for tokens in (1, 3, 7, 12):
        cut = driver.answer(complete("abc", tokens=tokens, shape=DATE))
        assert cut.text() == whole[:tokens]
        assert cut.ended[0].reason == "length"
        assert cut.ended[0].tokens == tokens
    complete_at = driver.answer(complete("abc", tokens=len(whole), shape=DATE))
    assert complete_at.ended[0].reason == "stop"


def test_a_stop_string_ends_a_forced_run(driver: Driver) -> None:
    asked = driver.answer(complete("abc", tokens=60, shape=DATE, stop=("o",)))
    assert re.fullmatch("date:[2-4]{4}_[ab]{2}_end_", asked.text())
    assert asked.ended[0].stop == "o"


def test_an_end_of_text_comes_only_where_the_shape_may_end(model: Any, driver: Driver) -> None:
    for seed in range(5):
        asked = driver.answer(complete("abc", tokens=60, temperature=2, seed=seed, shape=WORDS))
        assert re.fullmatch(WORDS.text, asked.text())


@pytest.mark.parametrize("fields", [{"frequency_penalty": 2.0}, {"logit_bias": ((50, 100.0), (54, -100.0))}])
def test_penalties_and_biases_leave_the_shape_alone(driver: Driver, fields: dict[str, Any]) -> None:
    asked = driver.answer(complete("abc", tokens=60, shape=DATE, **fields))
    assert re.fullmatch(DATE.text, asked.text())


@pytest.mark.parametrize(
    "fields", [{"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.9}, {"xtc_probability": 1.0, "xtc_threshold": 0.01}]
)
def test_filters_choose_among_what_the_shape_allows(driver: Driver, fields: dict[str, Any]) -> None:
    for seed in range(4):
        asked = driver.answer(complete("abc", tokens=60, temperature=1.5, seed=seed, shape=DATE, **fields))
        assert re.fullmatch(DATE.text, asked.text())


def test_log_probabilities_are_the_model_s_own_of_forced_tokens_too(model: Any, driver: Driver) -> None:
    import mlx.core as mx
    import numpy as np

    plain = driver.answer(complete("abc", tokens=60, shape=DATE))
    asked = driver.answer(complete("abc", tokens=60, shape=DATE, logprobs=0))
    assert asked.text() == plain.text()
    assert generated(asked).forced_tokens == generated(plain).forced_tokens
    said = [token for event in asked.events for token in getattr(event, "said", ())]
    assert "".join(token.token for token in said) == asked.text()
    ids = driver.language.encode("abc" + asked.text())
    logits = np.array(model(mx.array([ids]))[0]).astype(np.float64)
    norms = np.log(np.exp(logits).sum(-1))
    wanted = [logits[place - 1, ids[place]] - norms[place - 1] for place in range(3, len(ids))]
    assert [token.logprob for token in said] == pytest.approx(wanted, abs=1e-3)


def test_every_choice_has_the_shape(driver: Driver) -> None:
    asked = driver.answer(complete("abc", tokens=60, shape=DATE, n=3, temperature=1.5, seed=1))
    texts = [asked.text(choice) for choice in range(3)]
    assert all(re.fullmatch(DATE.text, text) for text in texts)
    assert len(set(texts)) > 1
    assert generated(asked).forced_tokens == 3 * 18


def test_behind_a_trigger_the_answer_has_the_shape_and_before_it_any(model: Any, driver: Driver) -> None:
    found = 0
    for seed in range(12):
        asked = driver.answer(complete("abc", tokens=40, temperature=1.5, seed=seed, shape=CALL))
        text = asked.text()
        calls = text.split("a")[1:]
        found += len(calls)
        # The last may have been cut off.
        assert all(re.match("f<[2-9]{1,3}>", call) for call in calls[:-1]), text
        assert not calls or re.match("f<[2-9]{1,3}>", calls[-1]) or re.fullmatch("f?|f<[2-9]{0,3}", calls[-1]), text
    assert found > 3


def test_a_shape_that_cannot_be_enforced_refuses_the_job_before_anything_is_read(driver: Driver) -> None:
    bad = Shape(kind="json", text='{"type":"notatype"}', param="response_format")
    asked = driver.answer(complete("abc", shape=bad))
    assert len(asked.events) == 1
    refusal = asked.events[0]
    assert isinstance(refusal, Failed)
    assert (refusal.kind, refusal.param) == (Kind.UNSUPPORTED_SCHEMA, "response_format")
    assert driver.engine.stats().read == 0


def test_or_becomes_a_hint_where_the_job_says_so(driver: Driver) -> None:
    bad = Shape(kind="json", text='{"type":"notatype"}', hint=True)
    asked = driver.answer(complete("abc", shape=bad))
    assert generated(asked).grammar == "hint"
    assert asked.text() == driver.answer(complete("hint:abc")).text()
    good = driver.answer(complete("abc", tokens=60, shape=Shape(kind="choice", text='["potato"]', hint=True)))
    assert (generated(good).grammar, good.text()) == ("enforced", "potato")


def test_a_job_can_be_cancelled_while_its_shape_is_compiled(driver: Driver) -> None:
    slow = Shape(kind="regex", text="([2-9]|[a-f]){1,9}x" + "y" * random.Random(1).randint(1, 9))
    asked = driver.ask(complete("abc", shape=slow))
    driver.steps(1)
    assert asked.handle is not None
    driver.engine.cancel(asked.handle)
    assert not driver.engine.busy
    assert driver.answer(complete("abc", tokens=3)).ended[0].tokens == 3


def test_others_decode_while_a_shape_is_compiled(driver: Driver) -> None:
    other = driver.ask(complete("Zebra", tokens=30))
    driver.steps(3)
    asked = driver.ask(complete("abc", tokens=60, shape=Shape(kind="regex", text="x[yz]{3}_once")))
    driver.run()
    assert re.fullmatch("x[yz]{3}_once", asked.text())
    assert len(other.text()) == 30


# Guesses.

REPEATING = "the_quick_brown_fox_jumps_over_" * 3


def repeating(model: Any) -> Any:
    """A network that says again what it read: the character that stands 31 places before the next one."""

    class Echo:
        def __init__(self) -> None:
            self.model = None
            self.layers = model.layers

        def __call__(self, ids: Any, cache: Any = None) -> Any:
            import mlx.core as mx

            logits = model(ids, cache=cache)
            layer = cache[0]
            if isinstance(layer.offset, int):
                starts = [layer.offset - ids.shape[1]]
            else:
                starts = [each - ids.shape[1] for each in layer.offset.tolist()]
            period = mx.array([[(start + 1 + place) % 31 for place in range(ids.shape[1])] for start in starts])
            letters = mx.array([ord(each) - 48 for each in REPEATING[:31]])
            return logits * 0.01 + 50 * (letters[period][..., None] == mx.arange(VOCABULARY))

        def parameters(self) -> Any:
            return model.parameters()

    return Echo()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_what_repeats_is_guessed_and_comes_in_fewer_steps(
    model: Any, language: ToyLanguage, passes: list[int], temperature: float
) -> None:
    echo = repeating(model)
    job = complete(REPEATING, tokens=90, temperature=temperature, seed=3)
    plain = Driver(echo, language, guessing=False)
    wanted, alone = plain.answer(job), len(passes)
    driver = Driver(echo, language)
    asked = driver.answer(job)
    assert asked.text() == wanted.text() == REPEATING[:90]
    assert driver.engine.stats().guessed == generated(asked).guessed_tokens > 50
    assert len(passes) - alone < alone / 2


def test_a_guess_changes_no_text(model: Any, language: ToyLanguage) -> None:
    """A random network repeats itself now and then: some guesses are right, most are wrong."""
    jobs = [
        complete(prompt * 5, tokens=60, temperature=temperature, seed=seed)
        for prompt in ("abcab", "Zebra", "no_no_yes")
        for temperature in (0.0, 0.3, 1.0)
        for seed in (1, 2)
    ]
    plain, guessing = Driver(model, language, guessing=False), Driver(model, language)
    assert [guessing.answer(job).text() for job in jobs] == [plain.answer(job).text() for job in jobs]


def test_what_was_guessed_wrong_is_not_remembered(model: Any, language: ToyLanguage) -> None:
    driver = Driver(model, language)
    job = complete("abcab" * 5, tokens=40)
    first = driver.answer(job)
    longer = "abcab" * 5 + first.text()[:30]
    again = driver.answer(complete(longer, tokens=10))
    assert again.started.cached_tokens > 40
    assert again.text() == first.text()[30:40]


def test_guesses_that_do_not_pay_are_given_up() -> None:
    import numpy as np

    from workers.llm.guess import Guesser

    guesser = Guesser(np.array([1, 2, 3, 4] * 5, np.int32))
    tried = 0
    for _ in range(100):
        if guesser.guess():
            tried += 1
            guesser.took(3, 0, 0.3)
        else:
            guesser.took(0, 0, 0.0)
    assert 2 <= tried <= 7


# All kinds of rows in one batch.


def mixed(number: int, chance: random.Random) -> Any:
    shape = chance.choice([None, None, DATE, WORDS, CHOICE, CALL])
    prompt = chance.choice(["abc", "Zebra", "abcab" * 4, "lorem_ipsum", "Q" * 30])
    return complete(
        prompt,
        tokens=chance.choice([5, 20, 45]),
        temperature=chance.choice([0.0, 0.0, 0.8]),
        seed=number,
        shape=shape,
        stop=chance.choice([(), ("u",)]),
        logprobs=chance.choice([None, None, 2]),
        client=str(number),
    )


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_all_kinds_share_a_batch_and_say_what_they_say_alone(
    model: Any, language: ToyLanguage, seed: int
) -> None:
    chance = random.Random(seed)
    jobs = [mixed(number, chance) for number in range(10)]
    alone = [Driver(model, language).answer(job) for job in jobs]
    driver = Driver(model, language, max_rows=6)
    asked = []
    for job in jobs:
        asked.append(driver.ask(job))
        driver.steps(chance.randint(0, 4))
    driver.run()
    assert [each.text() for each in asked] == [each.text() for each in alone]
    assert [each.ended[0].reason for each in asked] == [each.ended[0].reason for each in alone]
    assert [generated(each).forced_tokens for each in asked] == [generated(each).forced_tokens for each in alone]


def test_a_conversation_goes_on_from_a_row_that_had_gaps(model: Any, language: ToyLanguage) -> None:
    driver = Driver(model, language)
    jobs = [complete("abc", tokens=60, shape=DATE), complete("Zebra", tokens=25), complete("abcab" * 4, tokens=25)]
    asked = [driver.ask(job) for job in jobs]
    driver.run()
    for job, first in zip(jobs, asked, strict=True):
        longer = complete(str(job.prompt) + first.text() + "x", tokens=8)
        again = driver.answer(longer)
        assert again.started.cached_tokens >= len(str(job.prompt)) + len(first.text()) - 13
        assert again.text() == Driver(model, language).answer(longer).text()
