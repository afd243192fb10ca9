"""What guessing gains and costs, reckoned with the times of real machines instead of a network."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from workers.llm.guess import Guesser
from workers.llm.spans import Costs, Wish, width

MACHINES = {
    "Zen 3, AVX2": {1: 44, 2: 47, 4: 53, 8: 66, 16: 88},
    "Zen 5, AVX-512": {1: 25.6, 2: 32.9, 3: 41.2, 4: 47.1, 6: 57.1, 8: 51.2, 12: 55.7, 16: 62.3},
    "where two tokens cost as much as one and one": {1: 25, 2: 50, 4: 55, 8: 60, 16: 70},
}
"""Milliseconds of a step of SmolLM2-135M with one row, by its columns; those between cost as the next wider."""


def spent(times: dict[int, float], prompt: Sequence[int], answer: Sequence[int], *, guessing: bool = True) -> float:
    """Milliseconds in which `answer` is said."""
    guesser, costs, said, total = Guesser(np.array(prompt, np.int32)), Costs(), 0, 0.0
    costs.took(1, 1, times[1])
    while said < len(answer):
        guessed = guesser.guess()[: len(answer) - said - 1] if guessing else []
        columns = width([Wish(1, len(guessed), guesser.hope)], costs, uneven=True)
        tried = guessed[: columns - 1]
        took = next(milliseconds for wide, milliseconds in times.items() if wide >= columns)
        costs.took(1, columns, took)
        total += took
        right = next((at for at, token in enumerate(tried) if token != answer[said + at]), len(tried))
        for token in answer[said : said + right + 1]:
            guesser.chose(token)
            guesser.said([token])
        guesser.took(len(tried), right, costs.ratio(1, columns) - 1 if tried else 0.0)
        said += right + 1
    return total


def text(tokens: int, seed: int = 0) -> list[int]:
    return [random.Random(seed * 1000 + place).randrange(40000) for place in range(tokens)]


def prose(tokens: int, right: float, seed: int) -> tuple[list[int], list[int]]:
    """A prompt and an answer that takes up three words of it every ten tokens, and goes on as it with that chance."""
    chance, prompt, answer = random.Random(seed), text(400, seed), list[int]()
    while len(answer) < tokens:
        place = chance.randrange(390)
        answer += prompt[place : place + 3]
        while chance.random() < right:
            answer.append(prompt[min(place + 3, 399)])
            place += 1
        answer += [40000 + chance.randrange(9000) for _ in range(7)]
    return prompt, answer[:tokens]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_text_that_is_said_again_comes_half_as_fast_again_on_any_machine(machine: str) -> None:
    times, said = MACHINES[machine], text(64)
    assert spent(times, said, said) < spent(times, said, said, guessing=False) / 1.5


@pytest.mark.parametrize("right", [0.0, 0.15, 0.3])
@pytest.mark.parametrize("machine", MACHINES)
def test_where_guesses_are_mostly_wrong_they_cost_two_percent_at_most(machine: str, right: float) -> None:
    times, pairs = MACHINES[machine], [prose(200, right, seed) for seed in range(20)]
    guessing = sum(spent(times, *pair) for pair in pairs)
    assert guessing < 1.02 * sum(spent(times, *pair, guessing=False) for pair in pairs)


@pytest.mark.parametrize(("comes", "better"), [(4, True), (9, False)])
def test_a_guess_teaches_also_where_it_was_not_tried(comes: int, better: bool) -> None:
    guesser = Guesser(np.array([1, 2, 3, 4, 5, 1, 2, 3], np.int32))
    before = guesser.hope
    assert guesser.guess()[0] == 4
    guesser.chose(comes)
    guesser.said([comes])
    assert (guesser.hope > before) == better


def test_what_a_shape_forces_teaches_nothing() -> None:
    guesser = Guesser(np.array([1, 2, 3, 4, 5, 1, 2, 3], np.int32))
    before = guesser.hope
    guesser.guess()
    guesser.said([4])
    assert guesser.hope == before


def test_a_first_time_counts_as_much_as_what_was_assumed() -> None:
    costs = Costs()
    assumed = costs.ratio(1, 4)
    costs.took(1, 1, 0.030)
    costs.took(1, 4, 0.045)
    assert costs.ratio(1, 4) == pytest.approx((assumed + 1.5) / 2)


def test_a_width_between_counts_as_the_next_wider() -> None:
    costs = Costs()
    costs.took(1, 1, 0.030)
    costs.took(1, 5, 0.060)
    assert costs.ratio(1, 5) == costs.ratio(1, 6) > costs.ratio(1, 4)
