"""Candidates are chosen as often as they weigh, however many and however light they are."""

from __future__ import annotations

import numpy as np
import pytest

from workers.llm.race import Floats, Words, winner


def keys(number: int) -> list[Words]:
    raw = np.random.Philox(key=np.array([7, 0], np.uint64)).random_raw(2 * number)
    return list(raw.view(np.uint32).reshape(number, 4))


def shares(weights: Floats, ids: Words, draws: int) -> np.ndarray:
    places = [winner(weights, ids, key) for key in keys(draws)]
    return np.bincount(places, minlength=len(weights)) / draws


def test_the_heavier_wins_as_often_as_it_weighs() -> None:
    weights = np.array([50, 30, 15, 5], np.float32)
    found = shares(weights, np.array([3, 77, 40_000, 49_000], np.uint32), 6000)
    assert found == pytest.approx(weights / 100, abs=0.025)


def test_a_tail_of_very_light_ones_wins_as_often_as_they_weigh_together() -> None:
    """Each a millionth: what a hash of 32 bits alone could not tell apart."""
    weights = np.full(50_000, 1e-6, np.float32)
    weights[0] = 1
    found = shares(weights, np.arange(50_000, dtype=np.uint32), 4000)
    assert 1 - found[0] == pytest.approx(0.05 / 1.05, abs=0.014)


def test_equal_ones_win_equally_often_wherever_they_stand() -> None:
    found = shares(np.ones(4096, np.float32), np.arange(4096, dtype=np.uint32), 6000)
    assert found.reshape(8, -1).sum(axis=1) == pytest.approx(np.full(8, 1 / 8), abs=0.025)


def test_who_weighs_nothing_never_wins() -> None:
    weights = np.array([0, 1, 0, 1e-30], np.float32)
    assert {winner(weights, np.arange(4, dtype=np.uint32), key) for key in keys(500)} == {1}


def test_others_beside_them_do_not_change_who_of_two_is_first() -> None:
    """The time of each is its own: whoever wins among all also wins among some."""
    dice = np.random.default_rng(1)
    weights, ids = dice.random(1000).astype(np.float32), np.arange(1000, dtype=np.uint32)
    some = np.flatnonzero(weights > 0.5)
    for key in keys(200):
        first = winner(weights, ids, key)
        if first in some:
            assert some[winner(weights[some], ids[some], key)] == first
