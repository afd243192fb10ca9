"""How long a session has been at rest: seconds in which a service was there to be asked, and no others.

Knows one small file of a session's folder; knows neither limits nor what a session does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

log = logging.getLogger("starling.dictation")

MARK_S = 30.0
"""What a service that is killed may forget of a session's age. A session lives longer by that, never shorter."""


class _Mark(msgspec.Struct, frozen=True):
    ended: bool
    age: float


class Life:
    """One session's age: since its last audio while it takes some, since its end once it has ended.

    A clock that stands still while the machine sleeps counts it, so that nobody finds his dictation gone on waking.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.ended = False
        self._path = folder / "life"
        self._clock = clock
        self._since = clock()
        self._marked = _Mark(ended=False, age=0.0)

    @property
    def age(self) -> float:
        """Seconds."""
        return self._clock() - self._since

    @property
    def stale(self) -> bool:
        """Whether the file says something else, by more than MARK_S."""
        return self._marked.ended != self.ended or abs(self._marked.age - self.age) >= MARK_S

    def restart(self, *, ended: bool) -> None:
        """There was audio, or the session has ended."""
        self.ended = ended
        self._since = self._clock()

    def resume(self, *, ended: bool) -> None:
        """Go on from the file, if it is there and speaks of this part of the session's life."""
        self.restart(ended=ended)
        try:
            mark = msgspec.json.decode(self._path.read_bytes(), type=_Mark)
        except (FileNotFoundError, msgspec.DecodeError):
            return
        if mark.ended == ended:
            self._since -= max(0.0, mark.age)
            self._marked = mark

    def mark(self) -> None:
        """Bring the file up to date. Blocks for a moment."""
        mark = _Mark(self.ended, round(self.age, 1))
        try:
            self._path.write_bytes(msgspec.json.encode(mark))
        except FileNotFoundError:
            return  # The session was removed meanwhile.
        except OSError as error:
            log.warning("the age of a session cannot be noted: %s", error.strerror)
            return
        self._marked = mark
