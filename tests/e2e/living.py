"""Dictations that are open, for whoever asks at random: an id that was drawn would never be one.

Knows how a session is begun, and what it takes; knows nothing of who asks.
"""

from __future__ import annotations

import random
from array import array
from typing import Any

import requests

PATH = "/v1/audio/sessions"
MOST = 3
"""Sessions at a time."""
USES = 6
"""After so many requests for one there is another: some of them have finished it, or taken it away."""


class Living:
    """A few sessions of a service."""

    def __init__(self, url: str, session: requests.Session, chance: random.Random, patience_s: float) -> None:
        self._url = f"{url}{PATH}"
        self._session = session
        self._chance = chance
        self._patience_s = patience_s
        self._uses: dict[str, int] = {}

    def one(self) -> str | None:
        """The id of one; None where the service begins none now."""
        self.remove(least=USES)
        if len(self._uses) < MOST:
            made = self._session.post(self._url, json={}, timeout=self._patience_s)
            if made.status_code == requests.codes.created:
                self._uses[made.json()["id"]] = 0
        if not self._uses:
            return None
        id = self._chance.choice(list(self._uses))
        self._uses[id] += 1
        return id

    def remove(self, least: int = 0) -> None:
        """Those that were asked for so often."""
        for id in [id for id, uses in self._uses.items() if uses >= least]:
            del self._uses[id]
            self._session.delete(f"{self._url}/{id}", timeout=self._patience_s)

    def forget(self, id: str) -> None:
        """It is about to be removed."""
        self._uses.pop(id, None)

    def end(self, id: str) -> None:
        """So that the stream of its events has an end."""
        self._session.post(f"{self._url}/{id}/finish", timeout=self._patience_s)

    def audio(self, media_type: str) -> bytes:
        """Faint noise of that type, a few samples or many."""
        count = self._chance.choice((1, 2, 511, 1600, 16_000))
        if media_type == "audio/l16":
            return self._chance.randbytes(2 * count)
        return array("f", (self._chance.uniform(-0.1, 0.1) for _ in range(count))).tobytes()

    def number(self, headers: Any, name: str) -> None:
        """Leave a number out that would leave a gap: often it is not given at all."""
        match self._chance.randrange(3):
            case 0:
                headers.pop(name, None)
            case 1:
                headers[name] = "0"
