"""Compiles our C++ sources for this very processor, once, and opens what comes of it.

Knows the compiler and shared libraries; knows no source.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROCESSOR = "-march=native"
"""Of the options: the code may use all that this processor has, so the library is no use to another kind."""

FAST = ("-O3", PROCESSOR, "-pthread", "-w")
"""Options for code that computes."""
HEADERS = tuple(Path(__file__).parent / "cpu" / name for name in ("threads.h", "vectors.h", "panels.h"))
"""Used by all of it."""

_COMPILE_SECONDS = 120.0


class NotBuilt(Exception):
    """There is no compiler, it failed, or its work cannot be opened or kept; the message says which."""


def library(
    sources: Sequence[Path], folder: Path, compiler: str, options: Sequence[str] = (), mode: int = ctypes.DEFAULT_MODE
) -> ctypes.CDLL:
    """The sources as one library, compiled unless it lies in `folder` from an earlier time. Raises NotBuilt.

    sources: headers too, for what is built depends on them. Other processes may do the same at the same time.
    """
    if not compiler:
        raise NotBuilt("there is no C++ compiler")
    target = folder / name(sources, options)
    try:
        if not target.exists():
            units = [str(source) for source in sources if source.suffix == ".cpp"]
            _compile(target, [compiler, "-std=c++17", *options, *units])
        return ctypes.CDLL(str(target), mode=mode)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().splitlines()
        raise NotBuilt(f"{compiler} cannot build {target.name}: {said[0] if said else 'it says nothing'}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(f"{target.name}: {error}") from error


def name(sources: Sequence[Path], options: Sequence[str] = ()) -> str:
    """A file name that differs wherever what is in the file would."""
    parts = [source.read_bytes() for source in sources] + [option.encode() for option in options]
    if PROCESSOR in options:
        parts.append(_processor())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
    return f"{sources[0].stem.replace('_', '-')}-{digest}-{platform.machine()}.so"


def _processor() -> bytes:
    """What this processor can do, as Linux lists it."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    kinds = (b"model", b"flags", b"Features", b"CPU part", b"CPU implementer")
    return b"\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def _compile(target: Path, command: list[str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="tmp-") as scratch:
        made = Path(scratch) / "made.so"
        command = [*command, "-shared", "-fPIC", "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_SECONDS)
        made.replace(target)
