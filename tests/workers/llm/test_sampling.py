"""Tokens chosen from logits: greedy, filters, penalties, seeds and log-probabilities."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import InternalError
from protocol.jobs import Sampling
from workers.llm.files import Defaults
from workers.llm.sampling import Floats, Resolved, Sampler, logprobs, resolve


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def shares(*values: float) -> Floats:
    """Logits of such probabilities."""
    return np.log(np.array(values, np.float32))


def sampler(
    *, seed: int = 1, choice: int = 0, prompt: tuple[int, ...] = (), ends: tuple[int, ...] = (), **fields: Any
) -> Sampler:
    sampling = Sampling(**fields)
    settled = resolve(sampling, Defaults())
    return Sampler(sampling, settled, seed=seed, choice=choice, prompt=prompt, ends=ends)


def drawn(logits: Floats, draws: int = 2000, **fields: Any) -> Counter[int]:
    """What independent positions draw from the same logits."""
    chosen = sampler(**fields)
    return Counter(chosen.choose(logits) for _ in range(draws))


def test_temperature_zero_takes_the_likeliest_token() -> None:
    assert sampler(temperature=0.0).choose(floats(1, 3, 2)) == 1


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert sampler(temperature=1e-7).choose(floats(1, 3e4, 2)) == 1


def test_a_small_temperature_hardly_ever_takes_another() -> None:
    assert drawn(floats(1, 3, 2), temperature=0.05) == {1: 2000}


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    counts = drawn(shares(0.5, 0.3, 0.2), draws=4000)
    assert counts[0] / 4000 == pytest.approx(0.5, abs=0.03)
    assert counts[2] / 4000 == pytest.approx(0.2, abs=0.03)


def test_temperature_two_flattens() -> None:
    counts = drawn(shares(0.8, 0.2), draws=4000, temperature=2.0)
    assert counts[1] / 4000 == pytest.approx(1 / 3, abs=0.03)


def test_top_k_leaves_the_k_likeliest() -> None:
    assert set(drawn(shares(0.4, 0.1, 0.3, 0.2), top_k=2)) == {0, 2}


def test_top_p_leaves_the_fewest_tokens_that_weigh_so_much() -> None:
    assert set(drawn(shares(0.5, 0.1, 0.3, 0.1), top_p=0.7)) == {0, 2}


def test_top_p_keeps_the_likeliest_token_however_small_it_is() -> None:
    assert set(drawn(shares(0.5, 0.5 - 1e-3, 1e-3), top_p=1e-6)) == {0}


def test_top_p_sees_probabilities_after_the_temperature() -> None:
    # Untempered 0.9 is over the limit by itself; at temperature 2 it is 0.75.
    assert set(drawn(shares(0.9, 0.1), top_p=0.8, temperature=2.0)) == {0, 1}


def test_top_p_counts_what_top_k_has_left_as_the_whole() -> None:
    # Of 0.4 and 0.3 the first is 4/7: over one half.
    assert set(drawn(shares(0.4, 0.3, 0.3), top_k=2, top_p=0.55)) == {0}


def test_min_p_drops_what_is_unlikely_beside_the_likeliest() -> None:
    assert set(drawn(shares(0.6, 0.29, 0.11), min_p=0.4)) == {0, 1}


def test_xtc_drops_all_but_the_least_likely_of_the_obvious() -> None:
    fields = {"xtc_probability": 1.0, "xtc_threshold": 0.15}
    assert set(drawn(shares(0.5, 0.3, 0.2 - 1e-6, 1e-6), **fields)) == {2}


def test_xtc_happens_as_often_as_it_is_asked_for() -> None:
    counts = drawn(shares(0.9, 0.1), draws=4000, xtc_probability=0.5, xtc_threshold=0.05)
    assert counts[0] / 4000 == pytest.approx(0.45, abs=0.03)


def test_xtc_never_takes_an_end_of_text_away() -> None:
    counts = drawn(shares(0.5, 0.3, 0.2), ends=(0,), xtc_probability=1.0, xtc_threshold=0.1)
    assert set(counts) == {0, 2}


def test_presence_and_frequency_count_what_was_generated_and_not_the_prompt() -> None:
    chosen = sampler(temperature=0.0, prompt=(0, 0, 0), presence_penalty=1.0, frequency_penalty=0.5)
    logits = floats(3.0, 1.4, 0)
    # 3 | 3 - 1.5 | 3 - 2: less than 1.4 only now | 1.4 - 1.5 | 3 - 2 = 1, which is taken a third time | 3 - 2.5
    assert [chosen.choose(logits) for _ in range(5)] == [0, 0, 1, 0, 0]


def test_repetition_penalty_divides_what_is_positive_and_multiplies_what_is_not() -> None:
    assert sampler(temperature=0.0, prompt=(0,), repetition_penalty=2.0).choose(floats(3, 2)) == 1
    assert sampler(temperature=0.0, prompt=(0,), repetition_penalty=2.0).choose(floats(-1, -1.5)) == 1


@pytest.mark.parametrize("penalty", [5e-324, 1e-320, 1e308])
def test_a_repetition_penalty_beyond_all_measure_is_no_error(penalty: float) -> None:
    chosen = sampler(temperature=0.0, prompt=(0, 1, 2), repetition_penalty=penalty)
    assert chosen.choose(floats(0, 3, -3, 1)) == (1 if penalty < 1 else 3)


def test_repetition_penalty_forgets_what_is_further_back_than_its_context() -> None:
    fields: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 9.0, "repetition_context_size": 2}
    assert sampler(prompt=(0, 1, 2), **fields).choose(floats(3, 2, 1)) == 0


def test_logit_bias_is_added_before_all_else() -> None:
    assert sampler(temperature=0.0, logit_bias=((1, 100.0),)).choose(floats(3, 2)) == 1
    assert sampler(temperature=0.0, logit_bias=((0, -100.0),)).choose(floats(3, 2)) == 1


def test_logits_are_not_changed_by_penalties() -> None:
    logits = floats(3, 2)
    sampler(temperature=0.0, prompt=(0,), repetition_penalty=2.0, logit_bias=((1, 5.0),)).choose(logits)
    assert logits.tolist() == [3, 2]


def test_a_seed_draws_the_same_again() -> None:
    logits = np.zeros(1000, np.float32)
    first, second = sampler(seed=7), sampler(seed=7)
    assert [first.choose(logits) for _ in range(20)] == [second.choose(logits) for _ in range(20)]


def test_other_seeds_choices_and_positions_draw_otherwise() -> None:
    logits = np.zeros(100_000, np.float32)
    one = sampler(seed=7)
    drawn = [one.choose(logits), one.choose(logits), sampler(seed=8).choose(logits)]
    drawn.append(sampler(seed=7, choice=1).choose(logits))
    assert len(set(drawn)) == 4


def test_seeds_may_be_negative_or_huge() -> None:
    logits = np.zeros(10, np.float32)
    assert 0 <= sampler(seed=-(1 << 63)).choose(logits) < 10
    assert 0 <= sampler(seed=1 << 70).choose(logits) < 10


def test_a_draw_does_not_depend_on_what_was_drawn_before_but_on_where_it_is() -> None:
    logits = np.zeros(1000, np.float32)
    one, other = sampler(seed=7), sampler(seed=7)
    one.choose(logits)
    other.take(5)
    assert one.choose(logits) == other.choose(logits)


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"temperature": 1.5, "min_p": 1e-4}])
def test_the_last_bits_of_logits_change_no_draw(fields: dict[str, Any]) -> None:
    """A row that is computed among others has such differences; a long tail of improbable tokens makes it hard."""
    dice = np.random.default_rng(0)
    logits = dice.normal(0, 2.5, 49152).astype(np.float32)
    logits[:5] += 12
    one, other = sampler(seed=3, **fields), sampler(seed=3, **fields)
    drawn = []
    for _ in range(200):
        noise = dice.normal(0, 2e-5, len(logits)).astype(np.float32)
        drawn.append((one.choose(logits), other.choose(logits + noise)))
    assert [a for a, _ in drawn] == [b for _, b in drawn]
    assert len({a for a, _ in drawn}) > 5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_an_error_of_this_row(bad: float) -> None:
    with pytest.raises(InternalError):
        sampler().choose(floats(1, bad, 2))


def test_the_request_goes_before_the_model_and_the_model_before_the_defaults() -> None:
    makers = Defaults(temperature=0.6, top_p=0.9, top_k=40)
    assert resolve(Sampling(), Defaults()) == Resolved(1.0, 1.0, 0, 0.0)
    assert resolve(Sampling(), makers) == Resolved(0.6, 0.9, 40, 0.0)
    assert resolve(Sampling(temperature=0.0, top_p=1.0, top_k=0), makers) == Resolved(0.0, 1.0, 0, 0.0)


def test_logprobs_are_those_of_the_model_best_first() -> None:
    own, likeliest = logprobs(shares(0.2, 0.5, 0.3), 0, 2)
    assert own == pytest.approx(math.log(0.2), abs=1e-6)
    assert [token for token, _ in likeliest] == [1, 2]
    assert likeliest[0][1] == pytest.approx(math.log(0.5), abs=1e-6)


def test_logprobs_of_the_token_alone() -> None:
    assert logprobs(shares(0.25, 0.75), 1, 0) == (pytest.approx(math.log(0.75), abs=1e-6), ())


def test_more_likely_tokens_than_there_are_tokens_is_all_of_them() -> None:
    assert len(logprobs(shares(0.25, 0.75), 1, 20)[1]) == 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=60),
    st.floats(0.05, 0.999),
    st.floats(0.2, 2),
    st.sampled_from([0.0, 0.01, 0.3]),
)
def test_top_p_draws_from_the_nucleus_that_sorting_everything_finds(
    values: list[float], top_p: float, temperature: float, min_p: float
) -> None:
    logits = np.array(values, np.float32)
    weights = np.exp((logits - logits.max()) / np.float32(temperature)).astype(np.float64)
    weights[weights < min_p] = 0
    order = np.argsort(-weights, kind="stable")
    # A little wider than exact: the sums are of another precision.
    wide = int(np.searchsorted(np.cumsum(weights[order]), min(1.0, top_p + 1e-4) * weights.sum())) + 1
    found = set(drawn(logits, draws=60, top_p=top_p, temperature=temperature, min_p=min_p))
    least = weights[order[min(wide, len(order)) - 1]]
    assert all(weights[token] >= least for token in found)
