"""How the C library keeps memory, set for a process that makes and drops large arrays all the time.

Knows glibc's mallopt; knows no array. Elsewhere (macOS, musl) nothing is set.
"""

from __future__ import annotations

import ctypes
import sys

# glibc's malloc.h
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8


def share_heap() -> None:
    """Let all threads that start from here on use one heap: each of their own would keep freed blocks apart, 10 MB."""
    if libc := _glibc():
        libc.mallopt(_ARENA_MAX, 1)


def keep_memory() -> None:
    """Keep freed blocks: MLX's CPU buffers are plain malloc, and an mmap for each costs its page faults.

    Called once the weights are loaded, so that what loading freed has gone back to the system first.
    """
    if libc := _glibc():
        libc.malloc_trim(0)
        libc.mallopt(_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def give_back() -> None:
    """Freed blocks, wherever they lie between others, go back to the system: some hundred megabytes after a long prompt
    or a crowd, in some 20 ms."""
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") else None
