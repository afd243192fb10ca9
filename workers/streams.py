"""Several MLX streams side by side: how many, and how work is shared out among them."""

import os
from itertools import pairwise

import mlx.core as mx

# More streams than this were never tried: every layer exchanges its parts among all of them.
MAX_STREAMS = 8


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def new_streams(count: int) -> list[mx.Stream]:
    """`count` CPU streams of the calling thread; each runs its operations in order on a thread of its own."""
    return [mx.new_stream(mx.cpu) for _ in range(count)]


def split(total: int, parts: int) -> list[slice]:
    """0..total in `parts` slices as even as can be; some are empty where total < parts."""
    edges = [total * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]
