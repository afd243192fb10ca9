"""What finished conversations leave behind: prefixes, bytes, order and pins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


class Layer:
    """Stands for the keys and values of some ids: 10 bytes each."""

    def __init__(self, ids: tuple[int, ...], trimmable: bool = True) -> None:
        self.state: tuple[tuple[int, ...], bool] = (ids, trimmable)

    @classmethod
    def from_state(cls, state: tuple[tuple[int, ...], bool]) -> Layer:
        return cls(*state)

    @property
    def ids(self) -> tuple[int, ...]:
        return self.state[0]

    @property
    def nbytes(self) -> int:
        return 10 * len(self.ids)

    def is_trimmable(self) -> bool:
        return self.state[1]

    def trim(self, tokens: int) -> None:
        self.state = (self.ids[: len(self.ids) - tokens], self.state[1])


@pytest.fixture
def make(fast_blas: Any) -> Any:
    from workers.llm.cache import PromptCache

    return PromptCache


def ids(*values: int) -> Any:
    return np.array(values, np.int32)


def put(cache: Any, *values: int, key: str = "", pin: str | None = None, trimmable: bool = True) -> None:
    cache.put(key, ids(*values), [Layer(values, trimmable)], pin)


def taken(cache: Any, *values: int, key: str = "") -> tuple[int, ...] | None:
    """The ids whose caches are found."""
    found = cache.take(key, ids(*values))
    if found is None:
        return None
    assert found.length == len(found.layers[0].ids)
    held: tuple[int, ...] = found.layers[0].ids
    return held


def test_the_longest_common_prefix_is_found(make: Any) -> None:
    cache = make(10_000)
    put(cache, 1, 2, 3, 4)
    put(cache, 1, 2, 9, 9, 9, 9)
    assert taken(cache, 1, 2, 3, 5) == (1, 2, 3)
    assert taken(cache, 1, 2, 9, 5) == (1, 2, 9)


def test_nothing_in_common_is_nothing(make: Any) -> None:
    cache = make(10_000)
    put(cache, 1, 2)
    assert taken(cache, 2, 2) is None


def test_the_last_token_always_remains(make: Any) -> None:
    cache = make(10_000)
    put(cache, 1, 2, 3)
    assert taken(cache, 1, 2, 3) == (1, 2)
    assert taken(cache, 1) is None


def test_who_goes_on_from_a_whole_conversation_takes_it_away(make: Any) -> None:
    cache = make(10_000)
    put(cache, 1, 2, 3)
    assert taken(cache, 1, 2, 3, 4) == (1, 2, 3)
    assert (len(cache), cache.nbytes) == (0, 0)


def test_who_shares_a_part_leaves_it_for_others(make: Any) -> None:
    cache = make(10_000)
    put(cache, 1, 2, 3)
    assert taken(cache, 1, 2, 4) == (1, 2)
    assert taken(cache, 1, 2, 3, 4) == (1, 2, 3)


def test_another_adapter_shares_nothing(make: Any) -> None:
    cache = make(10_000)
    put(cache, 1, 2, 3, key="poet")
    assert taken(cache, 1, 2, 3, 4) is None
    assert taken(cache, 1, 2, 3, 4, key="poet") == (1, 2, 3)


def test_caches_that_cannot_be_cut_serve_whole_or_not_at_all(make: Any) -> None:
    cache = make(10_000)
    put(cache, 1, 2, 3, trimmable=False)
    assert taken(cache, 1, 2, 4) is None
    assert taken(cache, 1, 2, 3) is None
    assert taken(cache, 1, 2, 3, 4) == (1, 2, 3)


def test_a_longer_conversation_replaces_its_own_beginning(make: Any) -> None:
    cache = make(10_000)
    put(cache, 1, 2)
    put(cache, 1, 2, 3)
    assert (len(cache), cache.nbytes) == (1, 30)


def test_a_beginning_of_what_is_known_is_not_kept_twice(make: Any) -> None:
    cache = make(10_000)
    put(cache, 1, 2, 3)
    put(cache, 1, 2)
    put(cache, 1, 2, 3)
    assert (len(cache), cache.nbytes) == (1, 30)


def test_beginnings_that_longer_ones_cannot_stand_for_are_kept(make: Any) -> None:
    cache = make(10_000)
    put(cache, 1, 2, trimmable=False)
    put(cache, 1, 2, 3, trimmable=False)
    assert len(cache) == 2


def test_the_least_recently_used_goes_first_and_a_hit_is_a_use(make: Any) -> None:
    cache = make(60)
    put(cache, 1, 1)
    put(cache, 2, 2)
    put(cache, 3, 3)
    taken(cache, 1, 5)
    put(cache, 4, 4)
    assert [taken(cache, each, 9) for each in (1, 2, 3, 4)] == [(1,), None, (3,), (4,)]


def test_what_alone_is_too_large_is_not_kept_and_pushes_nothing_out(make: Any) -> None:
    cache = make(30)
    put(cache, 1, 1)
    put(cache, 2, 2, 2, 2)
    assert (len(cache), cache.nbytes) == (1, 20)


def test_a_pinned_conversation_goes_last(make: Any) -> None:
    cache = make(60)
    put(cache, 1, 1, pin="mine")
    for other in range(2, 9):
        put(cache, other, other)
    assert taken(cache, 1, 9) == (1,)
    assert len(cache) == 3


def test_only_the_newest_entry_of_a_pin_is_held(make: Any) -> None:
    cache = make(60)
    put(cache, 1, 1, pin="mine")
    put(cache, 2, 2, pin="mine")
    put(cache, 3, 3)
    put(cache, 4, 4)
    assert [taken(cache, each, 9) for each in (1, 2)] == [None, (2,)]


def test_pins_give_way_when_there_is_nothing_else(make: Any) -> None:
    cache = make(60)
    for each in range(1, 6):
        put(cache, each, each, pin=str(each))
    assert cache.nbytes == 60
    assert taken(cache, 1, 9) is None
    assert taken(cache, 5, 9) == (5,)


def test_a_longer_conversation_inherits_the_pin(make: Any) -> None:
    cache = make(60)
    put(cache, 1, 1, pin="mine")
    put(cache, 1, 1, 1)
    put(cache, 3, 3)
    put(cache, 4, 4)
    assert taken(cache, 1, 1, 1, 9) == (1, 1, 1)


def test_what_was_taken_away_still_knows_its_pin(make: Any) -> None:
    cache = make(60)
    put(cache, 1, 1, pin="mine")
    assert cache.take("", ids(1, 1, 1)).pin == "mine"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.booleans(), st.booleans()), max_size=30)
)
def test_whatever_happens_bytes_are_bounded_and_what_is_found_is_a_proper_prefix(
    fast_blas: Any, actions: list[tuple[list[int], bool, bool]]
) -> None:
    from workers.llm.cache import PromptCache

    cache = PromptCache(100)
    for values, is_put, flag in actions:
        if is_put:
            put(cache, *values, pin="p" if flag else None)
        else:
            found = taken(cache, *values) or ()
            assert len(found) < len(values)
            assert tuple(values[: len(found)]) == found
        assert 0 <= cache.nbytes <= 100


def test_a_view_can_grow_without_a_trace_in_what_it_was_taken_from(fast_blas: Any) -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    from workers.llm.cache import view

    layer = KVCache()  # type: ignore[no-untyped-call]
    layer.update_and_fetch(mx.ones((1, 1, 3, 2)), mx.ones((1, 1, 3, 2)))  # type: ignore[no-untyped-call]
    for length in (2, 3):
        (seen,) = view([layer], length, 3)
        keys, _ = seen.update_and_fetch(mx.zeros((1, 1, 1, 2)), mx.zeros((1, 1, 1, 2)))
        assert keys[0, 0, :, 0].tolist() == [1.0] * length + [0.0]
    keys, values = layer.keys_and_values()  # type: ignore[no-untyped-call]
    assert keys[0, 0, :, 0].tolist() == [1.0, 1.0, 1.0]
    assert values[0, 0, :, 0].tolist() == [1.0, 1.0, 1.0]
