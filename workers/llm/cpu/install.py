"""Makes a loaded network fast on a CPU: as compiled code where it is of a known kind, else in float32 on the BLAS.

Knows what to try in which order.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from workers import blas, native
from workers.heap import keep_memory
from workers.llm.cpu import linear, network
from workers.llm.cpu.plain import to_float32
from workers.streams import MAX_STREAMS, cores

_log = logging.getLogger(__name__)


def install(loaded: Any, folder: Path, threads: int = 0) -> bool:
    """Whether it is compiled code now, which keeps weights as they are in their file; else they become float32.

    loaded: mlx-lm's model, whose weights need not be evaluated. folder: where what is compiled is kept. threads: 0 is
    one for each core.
    """
    keep_memory()
    count = min(threads or cores(), MAX_STREAMS)
    try:
        if network.install(loaded, folder, blas.compiler(), count):
            return True
    except native.NotBuilt as error:
        _log.warning("the language model runs without compiled code, several times slower: %s", error)
    to_float32(loaded)
    linear.install(loaded, small_products=blas.small_products())
    return False
