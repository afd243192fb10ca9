"""How many tokens rows take in one step: what is certain is fed at once, what is guessed as far as it pays.

Knows lengths, hopes and seconds; knows no token. Costs are learnt: a step's seconds by its rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from workers.llm.running import Row
    from workers.llm.sampling import Floats

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Columns of a step, for which costs are learnt one by one."""
DEARER = 0.07
"""By so much of its time a step of one column grows with each token more, until that is known better: 44 ms for one
token of SmolLM2-135M on two CPU cores and 88 for sixteen."""
WEIGHT = 0.2
"""Of the newest time; of the first ones more, what was assumed before them counting as one."""
OUTLIER = 2.0
"""Times what was expected: more is somebody else's work, or a kernel being built."""


@dataclass(frozen=True)
class Wish:
    """What one row would take."""

    sure: int
    """Tokens that are said, or certain to be."""
    guessed: int = 0
    hope: float = 0.0
    """The probability of each guess, if all before it were right."""

    def progress(self, width: int) -> float:
        """Tokens by which a step of `width` columns brings the row on."""
        tried = max(min(self.sure + self.guessed, width) - self.sure, 0)
        return min(self.sure, width) + sum(self.hope**place for place in range(1, tried + 1))


class Wanted(NamedTuple):
    """What one row would have put into its caches in the next step."""

    known: Sequence[int]
    """Tokens that are said and not in the caches yet; never empty."""
    certain: Sequence[int]
    """Tokens that will be said next, whatever the logits."""
    guessed: Sequence[int]
    hope: float
    """The probability of each guessed token."""

    @property
    def wish(self) -> Wish:
        return Wish(len(self.known) + len(self.certain), len(self.guessed), self.hope)


class Fed(NamedTuple):
    """What a step did for one row."""

    row: Row
    span: Sequence[int]
    logits: Floats
    """(positions, vocabulary): after the last so many tokens of the span. None where not all that is said was fed."""
    tried: int
    """Guessed tokens among the span."""
    price: float
    """What they cost, in steps' worth of one token for each row beside."""


class Costs:
    """Seconds of steps, in terms of one column of as many rows."""

    def __init__(self) -> None:
        self._one: dict[int, float] = {}
        self._ratios: dict[tuple[int, int], tuple[float, int]] = {}
        """By rows and one of WIDTHS, and of how many steps it was learnt."""

    def ratio(self, rows: int, width: int) -> float:
        """A step of `width` columns takes so many times as long as one of a single column."""
        if width == 1:
            return 1.0
        assumed = 1 + DEARER * rows * (width - 1)
        return self._ratios.get((rows, _rounded(width)), (assumed, 0))[0]

    def took(self, rows: int, width: int, seconds: float) -> None:
        if width == 1:
            self._one[rows] = _nearer(self._one.get(rows, seconds), seconds, WEIGHT)
        elif rows in self._one:
            _, times = self._ratios.get((rows, _rounded(width)), (0.0, 0))
            nearer = _nearer(self.ratio(rows, width), seconds / self._one[rows], max(WEIGHT, 1 / (times + 2)))
            self._ratios[rows, _rounded(width)] = nearer, times + 1


def width(wishes: Sequence[Wish], costs: Costs, *, uneven: bool) -> int:
    """Columns of the next step: the most progress for the time. uneven: rows may take different numbers of tokens."""
    if not uneven:
        return min(wish.sure for wish in wishes)
    longest = max(wish.sure + wish.guessed for wish in wishes)
    if longest == 1:
        return 1
    able = [each for each in WIDTHS if each < longest] + [min(longest, WIDTHS[-1])]
    return max(able, key=lambda each: sum(wish.progress(each) for wish in wishes) / costs.ratio(len(wishes), each))


def _rounded(width: int) -> int:
    return next((each for each in WIDTHS if each >= width), WIDTHS[-1])


def _nearer(known: float, found: float, weight: float) -> float:
    return known + weight * (min(max(found, known / OUTLIER), known * OUTLIER) - known)
