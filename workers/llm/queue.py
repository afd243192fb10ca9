"""Whose prompt is read next, and how much of it at once. Knows clients, lengths and seconds; knows no model.

Fair by time: each client is charged the seconds that its prompts and rows took, and the one that has had least goes
first. Of equals, and of one client's own, the prompt with the least left to read goes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

FORBEARANCE = 16
"""How often a client's later prompts may overtake an earlier one of its own."""

BUSY_S = 0.12
"""Seconds of one piece of a prompt while rows decode: with a step of theirs they wait little more than 150 ms."""
IDLE_S = 0.6
"""The same while nobody decodes: whoever comes, or cancels, waits no longer, or for WORTH_READING tokens."""
WORTH_READING = 256
"""On a CPU half as many take 15 % longer for each, a quarter 60 %."""


class Shares:
    """Seconds each client has had, among those that have a job here."""

    def __init__(self) -> None:
        self._jobs: dict[str, int] = {}
        self._had: dict[str, float] = {}

    def enter(self, client: str) -> None:
        """A job of theirs begins. Who is new starts level with whoever has had least, without a claim on the past."""
        if client not in self._jobs:
            self._had[client] = min(self._had.values(), default=0.0)
        self._jobs[client] = self._jobs.get(client, 0) + 1

    def leave(self, client: str) -> None:
        self._jobs[client] -= 1
        if not self._jobs[client]:
            del self._jobs[client], self._had[client]

    def charge(self, client: str, seconds: float) -> None:
        """Of a client that has left in the meantime nothing is kept."""
        if client in self._had:
            self._had[client] += seconds

    def had(self, client: str) -> float:
        return self._had.get(client, 0.0)


class Line(Generic[T]):
    """Prompts to be read, whole or in part."""

    def __init__(self, shares: Shares, client: Callable[[T], str], left: Callable[[T], int]) -> None:
        """left: tokens of the prompt that are not read yet."""
        self._shares = shares
        self._client = client
        self._left = left
        self._waiting: list[T] = []
        self._passed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: T) -> None:
        self._waiting.append(item)
        self._passed[id(item)] = 0

    def remove(self, item: T) -> None:
        """Also of one that is not there."""
        if id(item) in self._passed:
            self._waiting = [each for each in self._waiting if each is not item]
            del self._passed[id(item)]

    def next(self, fits: Callable[[T], bool] = lambda _: True) -> T | None:
        """Whose turn it is among those that fit; it stays in line."""
        able = [(place, item) for place, item in enumerate(self._waiting) if fits(item)]
        if not able:
            return None
        place, chosen = min(able, key=lambda each: self._order(*each))
        for item in self._waiting[:place]:
            if self._client(item) == self._client(chosen):
                self._passed[id(item)] += 1
        return chosen

    def _order(self, place: int, item: T) -> tuple[float, bool, int, int]:
        patient = self._passed[id(item)] < FORBEARANCE
        return self._shares.had(self._client(item)), patient, self._left(item) if patient else 0, place


class Pace:
    """How many tokens of a prompt fit the time for one piece, learnt from the last ones."""

    def __init__(self, seconds: float, *, first: int, least: int = 16, most: int = 512) -> None:
        self._seconds = seconds
        self._size = first
        self._least = least
        self._most = most

    def piece(self, left: int) -> int:
        """Tokens of the next piece. A small rest is read with it."""
        return left if left <= self._size + self._size // 4 else self._size

    def took(self, tokens: int, seconds: float) -> None:
        """A piece that was quick says something about larger ones only if it was a full one."""
        ratio = self._seconds / max(seconds, 1e-9)
        if ratio < 1 or tokens >= self._size:
            wanted = int(tokens * min(max(ratio, 0.5), 1.5))
            self._size = min(max(wanted, self._least), self._most)
