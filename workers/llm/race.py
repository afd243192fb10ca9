"""A random choice that small errors in the weights hardly ever change: every candidate runs a race of its own.

Each has an exponential time from a hash of (key, its id), over its weight; the first to arrive is chosen, which happens
as often as its share of the weights says. Two sets of weights that differ by a millionth choose differently about once
in a million draws. A point on the running sum of the weights would move with every weight before it, and in a
vocabulary's long tail of improbable tokens it then hits another one nearly always.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

_SPREAD = np.uint32(0x9E3779B9)
_FIRST, _SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
"""Multipliers of Wellons's lowbias32, a hash that was searched for by its lack of bias."""
_TINY = np.float32(1e-38)
"""Only 0 is less, and nothing that weighs nothing arrives before the end of time."""
_SLACK = 1 + 1e-5
"""More than float32 loses in a quotient."""


def winner(weights: Floats, ids: Words, key: Words) -> int:
    """The place in `weights` (n,) that is chosen. ids (n,): what the candidates are called; key: (4,).

    weights: not negative, one of them above 0.
    """
    high = _hashed(ids, key[0], key[1])
    # -log(1 - v) is at least v: the time is at least this, in units of 2^-32.
    least = high.astype(np.float32)
    with np.errstate(over="ignore"):
        least /= np.maximum(weights, _TINY)
    place = int(least.argmin())
    bound = _times(weights, ids, high, np.array([place]), key)[0]
    able = np.flatnonzero(least <= bound * _SLACK)
    return int(able[_times(weights, ids, high, able, key).argmin()])


def _times(
    weights: Floats, ids: Words, high: Words, places: npt.NDArray[np.int64], key: Words
) -> npt.NDArray[np.float64]:
    """When the candidates at `places` arrive, exactly, in units of 2^-32."""
    low = _hashed(ids[places], key[2], key[3])
    # 52 bits, so that 1 is never reached.
    share = (high[places].astype(np.float64) * (1 << 20) + (low >> np.uint32(12)) + 0.5) / (1 << 52)
    with np.errstate(divide="ignore"):
        times: npt.NDArray[np.float64] = -np.log1p(-share) / weights[places] * (1 << 32)
    return times


def _hashed(ids: Words, first: np.uint32, second: np.uint32) -> Words:
    found: Words = ids * _SPREAD
    found += first
    found ^= found >> np.uint32(16)
    found *= _FIRST
    found ^= found >> np.uint32(15)
    found += second
    found *= _SECOND
    found ^= found >> np.uint32(16)
    return found
