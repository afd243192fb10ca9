"""The cheapest monotonic path through a matrix (dynamic time warping), without a compiler. Pure numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_BOTH, _DOWN, _RIGHT = 0, 1, 2


def path(cost: npt.NDArray[np.float32]) -> tuple[Ints, Ints]:
    """cost: (rows, columns), both > 0 -> the rows and the columns on the path from corner to corner, in order.

    Ties go right, as mlx-whisper's numba version breaks them.
    """
    trace = _moves(cost)
    i, j = cost.shape
    rows: list[int] = []
    columns: list[int] = []
    while i > 0 or j > 0:
        rows.append(i - 1)
        columns.append(j - 1)
        # Along the edges there is one way only.
        move = _RIGHT if i == 0 else _DOWN if j == 0 else trace[i + j, i]
        i -= move != _RIGHT
        j -= move != _DOWN
    return np.array(rows[::-1], np.int64), np.array(columns[::-1], np.int64)


def _moves(cost: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    """The move that reaches each cell (i, j), counted from 1, at [i + j, i].

    All cells of an anti-diagonal depend on the two before it only, so each is one vector operation: rows + columns
    steps instead of rows * columns.
    """
    n, m = cost.shape
    flat = np.ascontiguousarray(cost, np.float32).ravel()
    trace = np.zeros((n + m + 1, n + 1), np.int8)
    # total[i] is the cheapest way to (i, d - i) on the diagonal d; inf outside the matrix.
    before = np.full(n + 1, np.inf, np.float32)
    before[0] = 0
    last = np.full(n + 1, np.inf, np.float32)
    rows = np.arange(n + 1)
    for d in range(2, n + m + 1):
        low, high = max(1, d - m), min(n, d - 1) + 1
        i = rows[low:high]
        both, down, right = before[low - 1 : high - 1], last[low - 1 : high - 1], last[low:high]
        cheapest = np.minimum(both, down)
        move = np.where(both < down, _BOTH, _DOWN)
        move[(both == down) | (right <= cheapest)] = _RIGHT
        trace[d, low:high] = move
        new = np.full(n + 1, np.inf, np.float32)
        # A tie between `both` and `down` goes right even where right is dearer: the reference's comparisons.
        chosen = np.where(move == _RIGHT, right, cheapest)
        new[low:high] = chosen + flat[(i - 1) * m + (d - i - 1)]
        before, last = last, new
    return trace
