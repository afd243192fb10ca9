"""Rows of all kinds at once over compiled networks: what mlx-lm's networks say, and nobody's stored keys ever change.

The compiled code writes into the memory of mlx-lm's caches, which views, copies and stored conversations may share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as draw
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from protocol.jobs import MountAdapter
from protocol.settings import AdapterSource
from tests.workers.llm.adapters.toy_adapters import layers_of, save_mlx_lm
from tests.workers.llm.cpu.play import VOCABULARY, Job, Play, turn

Make = Callable[..., Any]

CLOSE = 3e-4
MOST_ROWS = 7
MOST_TOKENS = 620
LENGTHS = draw.one_of(
    draw.integers(1, 40), draw.sampled_from([63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 300, 511, 512, 513])
)
SPANS = draw.lists(draw.one_of(draw.integers(1, 6), draw.sampled_from([1, 1, 1, 33, 64])), min_size=1, max_size=3)
KEYS = draw.sampled_from([0, 0, 1, 2])
WHICH = draw.integers(0, 20)


class Seating(RuleBasedStateMachine):
    """The same on mlx-lm's network and on the compiled one."""

    def __init__(self, make: Callable[[], tuple[Play, Play]], keys: Sequence[str]) -> None:
        super().__init__()
        self.stock, self.compiled = self.plays = make()
        self.keys = keys
        self.known: list[list[int]] = [[]]
        self.seen: dict[int, tuple[Any, int, list[Any]]] = {}
        """What lies in caches of one sequence, as it was after the last rule; the caches are held, or ids of
        others would be taken for theirs."""
        self.drawn = 0

    # What may be done.

    @property
    def room(self) -> int:
        return MOST_ROWS - sum(len(job.rows) + len(job.to_start) for job in self.stock.jobs)

    def unread(self) -> list[int]:
        return [at for at, job in enumerate(self.stock.jobs) if job.left]

    def unstarted(self) -> list[int]:
        return [at for at, job in enumerate(self.stock.jobs) if not job.left and job.to_start]

    @initialize(often=draw.booleans(), lengths=draw.lists(LENGTHS, max_size=3), key=KEYS)
    def begin(self, often: bool, lengths: list[int], key: int) -> None:
        """often: looking has MLX compute what it would else have left for later."""
        self.often = often
        for length in lengths:
            self.answer(0, 1, length, key, 1)

    @precondition(lambda self: self.room > 0)
    @rule(like=WHICH, shared=LENGTHS, more=LENGTHS, key=KEYS, rows=draw.integers(1, 3))
    def answer(self, like: int, shared: int, more: int, key: int, rows: int) -> None:
        """A prompt that is read and answered at once."""
        self.arrive(like, shared, more, key, rows)
        self.read(-1, more, whole=True)
        self.start(-1, rows)

    @precondition(lambda self: self.room > 0)
    @rule(like=WHICH, shared=LENGTHS, more=LENGTHS, key=KEYS, rows=draw.integers(1, 3))
    def arrive(self, like: int, shared: int, more: int, key: int, rows: int) -> None:
        """A prompt that begins as something known does."""
        before = self.known[-1 - like % len(self.known)][:shared]
        ids = [*before, *self.tokens(more)][:MOST_TOKENS]
        self.known.append(ids)
        choices = range(min(rows, self.room))
        for play in self.plays:
            play.jobs.append(Job(self.keys[key], np.array(ids, np.int32), list(choices)))

    @precondition(lambda self: self.unread())
    @rule(which=WHICH, size=LENGTHS, whole=draw.booleans())
    def read(self, which: int, size: int, whole: bool) -> None:
        at = turn(self.unread(), which)
        said = [play.read(at, MOST_TOKENS if whole else size) for play in self.plays]
        job, other = (play.jobs[at] for play in self.plays)
        assert (job.done, job.cached, job.pin) == (other.done, other.cached, other.pin)
        assert all(layer.offset == job.done for layer in other.layers)
        if not job.left:
            self.same([each] for each in said)
            self.right(job.key, job.ids, said[1])

    @precondition(lambda self: self.unstarted())
    @rule(which=WHICH, count=draw.integers(1, 3))
    def start(self, which: int, count: int) -> None:
        at = turn(self.unstarted(), which)
        for play in self.plays:
            play.start(at, count)

    @precondition(lambda self: self.stock.lines)
    @rule(spans=SPANS, kept=SPANS, wanted=draw.lists(draw.integers(0, 3), min_size=1, max_size=2))
    def step(self, spans: list[int], kept: list[int], wanted: list[int]) -> None:
        """Of spans of unequal length, some tokens of which are taken back; with and without gaps before it."""
        for _ in range(2):
            self.drawn += 1
            self.same(play.step(spans, kept, wanted, self.drawn) for play in self.plays)

    @precondition(lambda self: self.stock.lines)
    @rule(which=WHICH)
    def one_token(self, which: int) -> None:
        """For every row; one of them is compared with what its tokens give without caches."""
        self.drawn += 1
        said = [play.step([1], [1], [1], self.drawn) for play in self.plays]
        self.same(said)
        row = which % len(said[1])
        line = [line for batch in self.compiled.seats._batches for line in batch.rows][row]
        self.right(line.running.key, line.all_ids, said[1][row][0])

    @precondition(lambda self: self.stock.lines)
    @rule(which=draw.sets(draw.integers(0, MOST_ROWS - 1), min_size=1, max_size=3))
    def leave(self, which: set[int]) -> None:
        """Answers are over; what they were is remembered."""
        count = len(self.stock.lines)
        places = sorted({each % count for each in which})
        self.known += [self.stock.lines[place].all_ids for place in places]
        for play in self.plays:
            play.leave(places)

    @precondition(lambda self: self.stock.jobs)
    @rule(which=WHICH)
    def part(self, which: int) -> None:
        """A job is cancelled, whatever it is at."""
        for play in self.plays:
            play.part(which % len(play.jobs))

    @precondition(lambda self: self.stock.jobs)
    @rule(rows=draw.integers(1, 3), length=draw.sampled_from([1, 5, 32, 33, 70]), key=KEYS)
    def embed(self, rows: int, length: int, key: int) -> None:
        """Texts without caches in between."""
        ids = [self.tokens(length) for _ in range(rows)]
        self.same(play.full(self.keys[key], ids) for play in self.plays)

    # What must be so.

    @precondition(lambda self: not self.often)
    @rule()
    def look(self) -> None:
        self.nothing_that_is_there_changes()
        self.room_is_a_cache_s_own()

    @invariant()
    def look_often(self) -> None:
        if self.often:
            self.look()

    def teardown(self) -> None:
        self.look()

    def nothing_that_is_there_changes(self) -> None:
        """Whoever steps: what a cache of one sequence held it still holds, unless it took tokens back."""
        seen = {}
        for layers in self.compiled.resting:
            cache, length = layers[0], layers[0].offset
            arrays = [np.array(each)[..., :length, :] for layer in layers for each in (layer.keys, layer.values)]
            seen[id(cache)] = cache, length, arrays
            _, before, olds = self.seen.get(id(cache), (cache, 0, arrays))
            count = min(length, before)
            assert all(np.array_equal(a[..., :count, :], b[..., :count, :]) for a, b in zip(arrays, olds, strict=True))
        self.seen = seen
        assert all(entry.layers[0].offset == len(entry.ids) for entry in self.compiled.cache._entries)

    def room_is_a_cache_s_own(self) -> None:
        """As network.py has it: nobody else has the memory behind a cache's last token."""
        alone = [(layers, layers[0].offset) for layers in self.compiled.resting]
        batched = [(batch._layers, batch._layers[0]._idx) for batch in self.compiled.seats._batches if batch._merged]
        held = [
            (np.array(array, copy=False), end)
            for layers, end in (*alone, *batched)
            for layer in layers
            for array in (layer.keys, layer.values)
        ]
        for array, end in held:
            room = array[..., end:, :]
            assert not any(np.shares_memory(room, other) for other, _ in held if other is not array)

    # Of use to all.

    def tokens(self, count: int) -> list[int]:
        self.drawn += 1
        return np.random.default_rng(self.drawn).integers(0, VOCABULARY, count).tolist()

    def same(self, found: Any) -> None:
        for a, b in zip(*found, strict=True):
            assert np.shape(a) == np.shape(b)
            assert np.size(a) == 0 or np.abs(np.array(a) - np.array(b)).max() < CLOSE

    def right(self, key: str, ids: Sequence[int], logits: Any) -> None:
        """As without caches."""
        self.same([self.stock.full(key, [ids])[:, -1], [logits]])


@pytest.mark.parametrize("variant", ["small", "small grouped"])
def test_rows_that_come_go_share_and_take_back(make_pair: Make, tmp_path: Path, variant: str) -> None:
    from workers.llm.adapters.mounts import Mounts

    networks = make_pair(variant)
    sizes = layers_of(networks[0], range(len(networks[0].layers)))
    folders = [save_mlx_lm(tmp_path / name, sizes, scale=0.5, seed=seed) for seed, name in enumerate("ab")]
    mounted = [Mounts(network) for network in networks]
    keys = ["", *(f"{folder.name}#{place}" for place, folder in enumerate(folders, 1))]
    for mounts in mounted:
        for folder in folders:
            mounts.do(MountAdapter(AdapterSource(folder.name, str(folder), folder.name)))
        assert [mounts.enter(name)[0] for name in ("none", "a", "b")] == keys

    def make() -> tuple[Play, Play]:
        first, second = (Play(network, mounts) for network, mounts in zip(networks, mounted, strict=True))
        return first, second

    run_state_machine_as_test(
        lambda: Seating(make, keys),
        settings=settings(
            max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
