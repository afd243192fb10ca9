"""Which token comes next: penalties, filters and the draw for one row, in numpy from the row's logits.

Knows one row and its seed; knows neither the batch nor MLX. A row draws the same whatever decodes beside it: its
randomness is a function of (seed, choice, position, token), and the last bits of logits, which depend on the rows that
were computed together, decide next to nothing (race.py).

The order, on raw logits: logit_bias, repetition_penalty, presence and frequency penalties; greedy stops here. Then, as
OpenAI and vLLM have it, temperature first and the filters on what it leaves: min_p, top_k, top_p, xtc, the draw.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from protocol.errors import InternalError, InvalidValue
from protocol.jobs import Sampling
from workers.llm.files import Defaults
from workers.llm.race import Words, winner

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Allowed = npt.NDArray[np.bool_]
"""(vocabulary,): True for a token that may be chosen."""

GREEDY_BELOW = 1e-5
"""Temperatures under it are greedy: dividing by them overflows (vLLM's own limit)."""


ENDLESS = 1e30
"""No logit is near it, and differences and sums of such are still numbers."""


class Resolved(msgspec.Struct, frozen=True):
    """The four values that a model's makers may have a say in, settled."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def resolve(sampling: Sampling, defaults: Defaults) -> Resolved:
    """The request's word, else the model's, else OpenAI's defaults."""

    def first(*values: float | None) -> float:
        return next(value for value in values if value is not None)

    return Resolved(
        temperature=first(sampling.temperature, defaults.temperature, 1.0),
        top_p=first(sampling.top_p, defaults.top_p, 1.0),
        top_k=int(first(sampling.top_k, defaults.top_k, 0)),
        min_p=first(sampling.min_p, 0.0),
    )


def refuse(sampling: Sampling, vocabulary: int) -> None:
    """Raises InvalidValue for a token that the model, with so many, does not have."""
    for token, _ in sampling.logit_bias:
        if not 0 <= token < vocabulary:
            raise InvalidValue(
                f"logit_bias: the model has no token {token}; its tokens are 0 to {vocabulary - 1}", param="logit_bias"
            )


class Sampler:
    """Chooses the tokens of one choice, one after the other."""

    def __init__(
        self,
        sampling: Sampling,
        settled: Resolved,
        *,
        seed: int,
        choice: int = 0,
        prompt: Iterable[int] = (),
        ends: Collection[int] = (),
    ) -> None:
        """prompt: ids before the answer, for the repetition penalty. ends: tokens that xtc never takes away."""
        self._sampling = sampling
        self._settled = settled
        self._key = np.array([seed % (1 << 64), choice], np.uint64)
        self._position = 0
        self._counts: Counter[int] = Counter()
        self._recent: deque[int] = deque(prompt, maxlen=sampling.repetition_context_size)
        self._ends = np.array(sorted(ends), np.int64)
        self._bias = _bias(sampling.logit_bias)

    def choose(self, logits: Floats, allowed: Allowed | None = None) -> int:
        """The next token. logits: (vocabulary,), not changed. allowed: none but these can be had; one at least.

        Raises InternalError when the logits are not numbers.
        """
        scores = self._penalised(logits)
        if allowed is not None and not self._settled.greedy:
            scores = np.where(allowed, scores, np.float32(-np.inf))
        best = int(scores.argmax())
        if allowed is not None and not allowed[best]:
            able = np.flatnonzero(allowed)
            best = int(able[scores[able].argmax()])
        if not np.isfinite(scores[best]):
            raise InternalError("the model computed no number for the next token")
        token = best if self._settled.greedy else self._draw(scores, scores[best])
        self.take(token)
        return token

    def certain(self, logits: Floats) -> int | None:
        """The token that is chosen if it may be had, where no chance decides. logits: as for `choose`."""
        if not self._settled.greedy:
            return None
        scores = self._penalised(logits)
        best = int(scores.argmax())
        return best if np.isfinite(scores[best]) else None

    def take(self, token: int) -> None:
        """A token that is part of the answer, chosen here or not."""
        self._position += 1
        self._counts[token] += 1
        self._recent.append(token)

    def _penalised(self, logits: Floats) -> Floats:
        sampling = self._sampling
        repetition = sampling.repetition_penalty != 1 and bool(self._recent)
        counted = bool(sampling.presence_penalty or sampling.frequency_penalty) and bool(self._counts)
        if self._bias is None and not repetition and not counted:
            return logits
        scores = logits.copy()
        if self._bias is not None:
            scores[self._bias[0]] += self._bias[1]
        if repetition:
            ids = np.array(sorted(set(self._recent)), np.int64)
            # In double precision: of a penalty near 0 a float would make 0 / 0.
            found = scores[ids].astype(np.float64)
            penalty = sampling.repetition_penalty
            with np.errstate(over="ignore"):
                found = np.where(found < 0, found * penalty, found / penalty)
            scores[ids] = np.clip(found, -ENDLESS, ENDLESS)
        if counted:
            ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            scores[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts
        return scores

    def _draw(self, scores: Floats, best: np.float32) -> int:
        settled = self._settled
        # Relative to the likeliest, which is 1.
        weights = np.exp((scores - best) / np.float32(settled.temperature))
        key, rolled = self._random()
        ids = _filtered(weights, settled)
        if rolled < self._sampling.xtc_probability:
            ids = _without_the_obvious(ids, weights, self._sampling.xtc_threshold, self._ends)
        if ids is None:
            return winner(weights, np.arange(len(weights), dtype=np.uint32), key)
        return int(ids[winner(weights[ids], ids.astype(np.uint32), key)])

    def _random(self) -> tuple[Words, float]:
        """A key and a number in [0, 1) that belong to this position."""
        counter = np.array([0, self._position, 0, 0], np.uint64)
        drawn = np.random.Philox(key=self._key, counter=counter).random_raw(3)
        return drawn[:2].view(np.uint32), (int(drawn[2]) >> 11) / (1 << 53)


def logprobs(logits: Floats, token: int, likeliest: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """log p(token) under the model's own distribution, and the `likeliest` tokens with theirs, best first."""
    best = logits.max()
    norm = float(best) + float(np.log(np.exp(logits - best).sum(dtype=np.float64)))
    ids: Ids = np.zeros(0, np.int64)
    if likeliest:
        count = min(likeliest, len(logits))
        ids = np.sort(np.argpartition(logits, -count)[-count:])
        ids = ids[np.argsort(-logits[ids], kind="stable")]
    return float(logits[token]) - norm, tuple((int(each), float(logits[each]) - norm) for each in ids)


def _bias(pairs: tuple[tuple[int, float], ...]) -> tuple[Ids, Floats] | None:
    if not pairs:
        return None
    summed = dict(pairs)
    return np.fromiter(summed.keys(), np.int64, len(summed)), np.fromiter(summed.values(), np.float32, len(summed))


def _filtered(weights: Floats, settled: Resolved) -> Ids | None:
    """The ids, ascending, that min_p, top_k and top_p leave; None: all."""
    if settled.min_p <= 0 and settled.top_k <= 0 and settled.top_p >= 1:
        return None
    floor = np.float32(settled.min_p)
    if settled.top_k <= 0 and settled.top_p < 1:
        # What is lighter than this weighs, all together, no more than top_p leaves out: none of it is in the nucleus,
        # and only the rest, some hundreds, need be sorted.
        floor = max(floor, np.float32((1 - settled.top_p) * _mass(weights, floor) / len(weights)))
    ids = np.flatnonzero(weights >= floor)
    if 0 < settled.top_k < len(ids):
        ids = np.sort(ids[np.argpartition(weights[ids], -settled.top_k)[-settled.top_k :]])
    if settled.top_p < 1:
        total = weights[ids].sum(dtype=np.float64) if settled.top_k > 0 else _mass(weights, np.float32(settled.min_p))
        order = np.argsort(-weights[ids], kind="stable")
        heaps = np.cumsum(weights[ids][order], dtype=np.float64)
        ids = np.sort(ids[order[: int(np.searchsorted(heaps, settled.top_p * total)) + 1]])
    return ids


def _mass(weights: Floats, floor: np.float32) -> float:
    """Of all weights that are not under the floor."""
    kept = weights if floor <= 0 else weights[weights >= floor]
    return float(kept.sum(dtype=np.float64))


def _without_the_obvious(ids: Ids | None, weights: Floats, threshold: float, ends: Ids) -> Ids:
    """XTC: of the tokens likelier than the threshold only the least likely stays, and those that end a text."""
    ids = np.arange(len(weights)) if ids is None else ids
    shares = weights[ids] / weights[ids].sum(dtype=np.float64)
    above = shares > threshold
    if above.sum() < 2:
        return ids
    least = shares[above].min()
    kept: Ids = ids[(~above) | (shares <= least) | np.isin(ids, ends)]
    return kept
