"""The engine over a toy model: rows that join and leave, prompts read in pieces, caches, failures and cancels."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import Kind
from protocol.events import ChoiceEnded, Delta, Failed, Generated, Progress, Started
from protocol.jobs import Decode
from tests.workers.llm.toy import VOCABULARY, WINDOW, Asked, Driver, ToyLanguage, chat, complete, network

PROMPTS = ["abc", "Zebra", "no", "a" * 40, "lorem_ipsum", "Q", "xyzzy" * 5, "the_end"]
NEVER = frozenset({-1})


@pytest.fixture(scope="module")
def model(fast_blas: Any) -> Any:
    return network()


@pytest.fixture
def driver(model: Any) -> Driver:
    """Nothing ends a text but its length."""
    return Driver(model, ToyLanguage(NEVER))


def greedy(model: Any, prompt: str, tokens: int) -> str:
    """What the network says, recomputed from the whole text for each token, without any cache."""
    import mlx.core as mx

    language = ToyLanguage()
    ids = language.encode(prompt)
    for _ in range(tokens):
        ids.append(int(mx.argmax(model(mx.array([ids]))[0, -1]).item()))
    return language.decode(ids)[len(prompt) :]


def stored(driver: Driver) -> int:
    return driver.engine.stats().cached_bytes


def test_an_answer_is_what_the_network_says_greedily(model: Any, driver: Driver) -> None:
    assert driver.answer(complete("abc")).text() == greedy(model, "abc", 12)


def test_events_come_in_order(driver: Driver) -> None:
    asked = driver.answer(complete("abc", tokens=3))
    kinds = [type(each) for each in asked.events]
    assert kinds == [Started, Delta, Delta, Delta, ChoiceEnded, Generated]
    assert asked.started == Started(prompt_tokens=3, cached_tokens=0)
    assert asked.ended == [ChoiceEnded(choice=0, reason="length", tokens=3)]
    last = asked.last
    assert isinstance(last, Generated)
    assert (last.prompt_tokens, last.cached_tokens, last.completion_tokens) == (3, 0, 3)


def test_the_same_jobs_alone_and_together_say_the_same(model: Any, driver: Driver) -> None:
    together = [driver.ask(complete(prompt, client=prompt)) for prompt in PROMPTS]
    driver.run()
    assert [each.text() for each in together] == [greedy(model, prompt, 12) for prompt in PROMPTS]


def test_rows_join_and_leave_at_any_step(model: Any, driver: Driver) -> None:
    asked: list[Asked] = []
    for place, prompt in enumerate(PROMPTS):
        asked.append(driver.ask(complete(prompt, tokens=5 + 3 * (place % 3))))
        driver.steps(2)
    driver.run()
    wanted = [greedy(model, prompt, 5 + 3 * (place % 3)) for place, prompt in enumerate(PROMPTS)]
    assert [each.text() for each in asked] == wanted


def test_a_long_row_among_short_ones_gets_a_batch_of_its_own(model: Any) -> None:
    driver = Driver(model, ToyLanguage(NEVER), padding_bytes=0)
    asked = [driver.ask(complete(prompt)) for prompt in PROMPTS]
    driver.run()
    assert [each.text() for each in asked] == [greedy(model, prompt, 12) for prompt in PROMPTS]


def test_a_seed_answers_the_same_alone_and_among_others(driver: Driver) -> None:
    job = complete("abc", temperature=1.3, seed=5, tokens=20)
    alone = driver.answer(job).text()
    others = [driver.ask(complete(prompt, temperature=1.0)) for prompt in PROMPTS]
    driver.steps(3)
    among = driver.ask(job)
    driver.run()
    assert among.text() == alone
    assert all(each.over for each in others)


def test_without_a_seed_answers_differ(driver: Driver) -> None:
    job = complete("abc", temperature=2.0, tokens=30)
    assert driver.answer(job).text() != driver.answer(job).text()


def test_choices_share_one_reading_of_the_prompt_and_have_randomness_of_their_own(driver: Driver) -> None:
    asked = driver.answer(complete("lorem_ipsum", temperature=1.5, seed=3, n=4, tokens=20))
    assert driver.engine.stats().read == 11
    assert len({asked.text(choice) for choice in range(4)}) == 4
    assert sorted(each.choice for each in asked.ended) == [0, 1, 2, 3]
    assert isinstance(asked.last, Generated)
    assert asked.last.completion_tokens == 80


def test_the_first_choice_is_what_a_single_one_would_be(driver: Driver) -> None:
    job = {"temperature": 1.5, "seed": 3, "tokens": 20}
    several = driver.answer(complete("lorem_ipsum", n=3, **job))  # type: ignore[arg-type]
    assert several.text(0) == driver.answer(complete("lorem_ipsum", **job)).text()  # type: ignore[arg-type]


def test_more_choices_than_rows_follow_one_another(model: Any) -> None:
    driver = Driver(model, ToyLanguage(NEVER), max_rows=3)
    asked = driver.ask(complete("abc", n=8, tokens=6))
    other = driver.ask(complete("Zebra", tokens=6))
    most = 0
    while driver.engine.busy:
        driver.engine.step()
        most = max(most, driver.engine.stats().rows)
    assert most == 3
    assert {asked.text(choice) for choice in range(8)} == {greedy(model, "abc", 6)}
    assert other.text() == greedy(model, "Zebra", 6)


def test_a_head_of_its_own_gives_the_same_answers(model: Any) -> None:
    driver = Driver(model, ToyLanguage(NEVER), head=model.lm_head)
    assert driver.answer(complete("abc")).text() == greedy(model, "abc", 12)


def test_an_end_of_text_is_counted_and_not_said(model: Any) -> None:
    said = greedy(model, "abc", 6)
    language = ToyLanguage()
    language.ends = frozenset(language.encode(said[3]))
    cut = said[: said.index(said[3])]
    asked = Driver(model, language).answer(complete("abc"))
    assert asked.text() == cut
    (end,) = language.ends
    assert asked.ended == [ChoiceEnded(choice=0, reason="stop", tokens=len(cut) + 1, ids=(end,))]


def test_an_end_of_text_at_once_is_an_empty_answer(model: Any) -> None:
    language = ToyLanguage()
    language.ends = frozenset(language.encode(greedy(model, "abc", 1)))
    asked = Driver(model, language).answer(complete("abc", n=2))
    assert [type(each) for each in asked.events] == [Started, ChoiceEnded, ChoiceEnded, Generated]


def test_a_stop_string_ends_its_choice_and_is_named(model: Any, driver: Driver) -> None:
    """LLM-06"""
    said = greedy(model, "Zebra", 12)
    stop = said[4]
    asked = driver.answer(complete("Zebra", stop=(stop,)))
    assert asked.text() == said[: said.index(stop)]
    assert asked.ended[0].reason == "stop"
    assert asked.ended[0].stop == stop


def test_logprobs_come_only_where_they_are_asked_for(driver: Driver) -> None:
    plain = driver.ask(complete("abc", tokens=2))
    asked = driver.ask(complete("abc", tokens=2, logprobs=0))
    driver.run()
    deltas = [each for each in asked.events if isinstance(each, Delta)]
    assert all(len(each.said) == 1 and each.said[0].logprob < 0 for each in deltas)
    assert not any(each.said for each in plain.events if isinstance(each, Delta))


def test_an_echo_comes_before_the_answer_of_each_choice(model: Any, driver: Driver) -> None:
    asked = driver.answer(complete("abc", n=2, tokens=4, echo=True))
    assert [asked.text(0), asked.text(1)] == ["abc" + greedy(model, "abc", 4)] * 2


def test_max_tokens_none_is_what_the_window_leaves(model: Any, driver: Driver) -> None:
    from msgspec.structs import replace

    job = complete("a" * (WINDOW - 5))
    asked = driver.answer(replace(job, generation=replace(job.generation, max_tokens=None)))
    assert asked.ended == [ChoiceEnded(choice=0, reason="length", tokens=5)]


def test_a_bias_reaches_the_row_that_asked_for_it_and_no_other(model: Any, driver: Driver) -> None:
    plain = driver.ask(complete("abc"))
    biased = driver.ask(complete("abc", logit_bias=((9, 100.0),)))
    driver.run()
    assert biased.text() == "9" * 12
    assert plain.text() == greedy(model, "abc", 12)


# What is refused, and what fails alone.


def test_a_job_for_another_engine_is_refused(driver: Driver) -> None:
    asked = driver.ask(Decode(source="a", target="b"))  # type: ignore[arg-type]
    assert isinstance(asked.last, Failed)
    assert asked.last.kind is Kind.WRONG_MODEL_KIND
    assert not driver.engine.busy


def test_a_bias_for_a_token_that_does_not_exist_is_refused_by_its_name(driver: Driver) -> None:
    asked = driver.ask(complete("abc", logit_bias=((VOCABULARY, 1.0),)))
    assert isinstance(asked.last, Failed)
    assert (asked.last.kind, asked.last.param) == (Kind.INVALID_VALUE, "logit_bias")


@pytest.mark.parametrize("prompt", ["no!", "a" * WINDOW])
def test_a_prompt_that_is_refused_fails_before_it_started_and_alone(driver: Driver, prompt: str) -> None:
    other = driver.ask(complete("abc"))
    refused = driver.ask(complete(prompt))
    driver.run()
    assert [type(each) for each in refused.events] == [Failed]
    assert isinstance(other.last, Generated)


def test_an_error_in_one_prompt_is_that_jobs_alone(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    other = driver.ask(complete("abc"))
    driver.steps(2)
    driver.language.explode = True
    broken = driver.ask(complete("abc"))
    driver.run()
    assert isinstance(broken.last, Failed)
    assert broken.last.kind is Kind.INTERNAL_ERROR
    assert "ZeroDivisionError" not in broken.last.message
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert isinstance(other.last, Generated)


def test_a_row_that_fails_leaves_the_others_in_peace(
    model: Any, driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [driver.ask(complete(prompt)) for prompt in PROMPTS[:3]]
    driver.run(until=lambda: driver.engine.stats().rows == 3)
    handle = asked[1].handle
    assert handle is not None

    def explode(*_: object) -> int:
        raise ZeroDivisionError

    handle.rows[0].hear = explode  # type: ignore[method-assign,assignment]
    driver.run()
    assert isinstance(asked[1].last, Failed)
    assert [asked[0].text(), asked[2].text()] == [greedy(model, PROMPTS[0], 12), greedy(model, PROMPTS[2], 12)]
    assert driver.engine.stats().rows == 0


# Cancelling.


def test_a_cancelled_row_is_gone_at_once_and_the_others_go_on(model: Any, driver: Driver) -> None:
    asked = [driver.ask(complete(prompt)) for prompt in PROMPTS[:3]]
    driver.run(until=lambda: driver.engine.stats().rows == 3)
    handle = asked[1].handle
    assert handle is not None
    driver.engine.cancel(handle)
    driver.engine.cancel(handle)
    assert driver.engine.stats().rows == 2
    driver.run()
    assert not asked[1].over
    assert [asked[0].text(), asked[2].text()] == [greedy(model, PROMPTS[0], 12), greedy(model, PROMPTS[2], 12)]


def test_a_job_cancelled_before_its_turn_is_never_rendered(driver: Driver) -> None:
    driver.language.explode = True
    asked = driver.ask(complete("abc"))
    assert asked.handle is not None
    driver.engine.cancel(asked.handle)
    assert not driver.engine.busy
    driver.engine.step()
    assert asked.events == []


def test_a_prompt_cancelled_while_it_is_read_is_read_no_further(driver: Driver) -> None:
    asked = driver.ask(complete("a" * 350))
    driver.steps(1)
    assert asked.handle is not None
    read = driver.engine.stats().read
    assert 0 < read < 350
    driver.engine.cancel(asked.handle)
    driver.steps(3)
    assert driver.engine.stats().read == read
    assert not driver.engine.busy


def test_what_a_cancelled_job_had_read_serves_the_next(driver: Driver) -> None:
    asked = driver.ask(complete("a" * 350))
    driver.steps(1)
    assert asked.handle is not None
    read = driver.engine.stats().read
    driver.engine.cancel(asked.handle)
    assert driver.answer(complete("a" * 350)).started.cached_tokens == read


# Reading prompts.


def test_a_long_prompt_reports_how_far_it_is(driver: Driver) -> None:
    asked = driver.answer(complete("a" * 350))
    progress = [each for each in asked.events if isinstance(each, Progress)]
    assert progress
    assert all(0 < each.done < each.total == 350 for each in progress)
    assert asked.events.index(asked.started) > asked.events.index(progress[-1])


def test_rows_go_on_while_a_long_prompt_is_read(driver: Driver) -> None:
    row = driver.ask(complete("abc", tokens=60))
    driver.run(until=lambda: driver.engine.stats().rows == 1)
    long = driver.ask(complete("a" * 350))
    before = len(row.text())
    driver.run(until=lambda: any(isinstance(each, Started) for each in long.events))
    assert len(row.text()) - before >= 3


def test_a_short_prompt_goes_before_the_rest_of_a_long_one(driver: Driver) -> None:
    long = driver.ask(complete("a" * 350, client="long"))
    driver.steps(1)
    short = driver.ask(complete("abc", client="short"))
    driver.steps(1)
    assert short.text() != ""
    assert long.text() == ""
    driver.run()
    assert isinstance(long.last, Generated)


def test_prompts_wait_while_rows_fill_the_memory(model: Any) -> None:
    driver = Driver(model, ToyLanguage(NEVER), memory_bytes=1)
    asked = [driver.ask(complete(prompt)) for prompt in PROMPTS[:3]]
    most = 0
    while driver.engine.busy:
        driver.engine.step()
        most = max(most, driver.engine.stats().rows)
    assert most == 1
    assert [each.text() for each in asked] == [greedy(model, prompt, 12) for prompt in PROMPTS[:3]]


# What others left behind.


def test_a_next_turn_reads_only_what_is_new(driver: Driver) -> None:
    first = driver.answer(chat("hello", tokens=6))
    answer = first.text()
    read = driver.engine.stats().read
    second = driver.answer(chat("hello", answer, "more"))
    # hello, 2 and the answer but for its last token, which never went through the network
    assert second.started.cached_tokens == 6 + 6 - 1
    assert driver.engine.stats().read - read == second.started.prompt_tokens - 11


def test_whatever_is_cached_answers_are_those_of_a_cold_cache(model: Any, driver: Driver) -> None:
    """ISO-06: three turns, then a new chat, an edit, a dropped turn, a prefix of a known prompt, the same twice."""
    shared = "system_prompt_of_some_length"
    turns = [f"{shared}one"]
    for more in ("2two", "2three"):
        turns.append(turns[-1] + greedy(model, turns[-1], 8) + more)
    prompts = [*turns, f"{shared}hi", turns[2].replace("two", "TWO"), turns[1], turns[2][:40], turns[2], turns[2]]
    for prompt in prompts:
        asked = driver.answer(complete(prompt, tokens=8))
        assert asked.text() == greedy(model, prompt, 8)
        assert 0 <= asked.started.cached_tokens < asked.started.prompt_tokens == len(prompt)


def test_the_same_prompt_twice_leaves_its_last_token_to_be_read(driver: Driver) -> None:
    driver.answer(complete("lorem_ipsum"))
    assert driver.answer(complete("lorem_ipsum")).started.cached_tokens == 10


def test_a_prompt_equal_to_a_known_conversation_leaves_its_last_token_too(model: Any, driver: Driver) -> None:
    text = "abc" + driver.answer(complete("abc", tokens=5)).text()
    asked = driver.answer(complete(text[:-1], tokens=5))
    assert asked.started.cached_tokens == 6
    assert asked.text() == greedy(model, text[:-1], 5)


def test_a_conversation_that_is_gone_on_from_twice_at_once_serves_both(model: Any, driver: Driver) -> None:
    text = "lorem_ipsum" * 5
    text += driver.answer(complete(text, tokens=5)).text()
    one, other = driver.ask(complete(text + "x")), driver.ask(complete(text + "y"))
    driver.run()
    assert one.text() == greedy(model, text + "x", 12)
    assert other.text() == greedy(model, text + "y", 12)
    # The second begins where the first one is by then: all that both share.
    assert [one.started.cached_tokens, other.started.cached_tokens] == [59, 60]


def test_a_prompt_starts_from_what_is_being_answered_right_now(model: Any, driver: Driver) -> None:
    text = "lorem_ipsum" * 5
    first = driver.ask(complete(text + "a", tokens=30))
    driver.run(until=lambda: driver.engine.stats().rows == 1)
    second = driver.answer(complete(text + "b"))
    assert second.started.cached_tokens == 55
    assert second.text() == greedy(model, text + "b", 12)
    assert first.text() == greedy(model, text + "a", 30)


def test_equal_beginnings_that_come_at_once_are_read_once(model: Any, driver: Driver) -> None:
    text = "lorem_ipsum" * 10
    asked = [driver.ask(complete(text + each, client=each)) for each in "abcd"]
    driver.run()
    assert driver.engine.stats().read < 2 * len(text)
    assert [each.text() for each in asked] == [greedy(model, text + each, 12) for each in "abcd"]


def test_the_cache_stays_within_its_bytes(model: Any) -> None:
    driver = Driver(model, ToyLanguage(NEVER), cache_bytes=1 << 20)
    for number in range(40):
        driver.answer(complete(f"{number}".rjust(3, "a") * 20, tokens=2))
        assert stored(driver) <= 1 << 20
    assert stored(driver) > 0


def test_no_cache_at_all_is_fine(model: Any) -> None:
    driver = Driver(model, ToyLanguage(NEVER), cache_bytes=0)
    driver.answer(complete("lorem_ipsum"))
    again = driver.answer(complete("lorem_ipsum"))
    assert again.started.cached_tokens == 0
    assert again.text() == greedy(model, "lorem_ipsum", 12)


def test_a_model_whose_caches_cannot_be_cut_is_served_and_reuses_whole_conversations(fast_blas: Any) -> None:
    from mlx_lm.models.cache import RotatingKVCache

    model = network()
    model.make_cache = lambda: [RotatingKVCache(max_size=1000) for _ in model.layers]
    driver = Driver(model, ToyLanguage(NEVER))
    asked = [driver.ask(complete(prompt)) for prompt in PROMPTS]
    driver.run()
    assert [each.text() for each in asked] == [greedy(network(), prompt, 12) for prompt in PROMPTS]


def test_a_model_whose_caches_do_not_merge_decodes_its_rows_one_by_one(fast_blas: Any) -> None:
    from mlx_lm.models.cache import ConcatenateKVCache

    model = network()
    model.make_cache = lambda: [ConcatenateKVCache() for _ in model.layers]
    driver = Driver(model, ToyLanguage(NEVER))
    asked = [driver.ask(complete(prompt, n=2)) for prompt in PROMPTS]
    driver.run()
    for each, prompt in zip(asked, PROMPTS, strict=True):
        assert [each.text(0), each.text(1)] == [greedy(network(), prompt, 12)] * 2


def test_traces_are_written_where_they_are_asked_for(driver: Driver) -> None:
    driver.answer(complete("abc"))
    assert driver.language.traced == []
    driver.answer(complete("abc", trace=True))
    (spent,) = driver.language.traced
    assert 0 < spent.prefill <= spent.first_token
