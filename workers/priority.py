"""A worker's place in the scheduler's order: behind the front end, which has little to do and must do it at once."""

from __future__ import annotations

import os

NICE = 5
"""On Linux the front end gets three times a worker thread's share of a core that both want, and it wants little. More
would leave a model too little beside an application that computes."""


def give_way() -> None:
    """From here on this process's threads, and what it starts, come after the service's own."""
    os.nice(NICE)
