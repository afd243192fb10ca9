"""Products with few rows: MLX's really pass through few_rows.cpp, and are right either way."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workers import blas, few_rows, native

needed = pytest.mark.skipif(not blas.compiler(), reason="only MLX's CPU backend on Linux needs it, and a compiler")


@pytest.fixture
def way(fast_blas: blas.Blas) -> Any:
    """How many rows go row by row, to be set; the process's own number comes back afterwards."""
    folder = Path(fast_blas.path).parent
    if folder.name != "blas":
        pytest.skip("this machine's BLAS is the system's")
    (found,) = folder.glob(native.name([few_rows.SOURCE], few_rows.OPTIONS))
    rows = ctypes.c_int.in_dll(ctypes.CDLL(str(found)), "starling_few_rows")
    before = rows.value
    yield rows
    rows.value = before


@needed
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_row_by_row_a_product_is_what_it_was(way: Any, rows: int, transposed: tuple[bool, bool]) -> None:
    import mlx.core as mx

    random = np.random.default_rng(rows)

    def operand(shape: tuple[int, int], turned: bool) -> tuple[Any, np.ndarray]:
        values = random.normal(size=shape).astype(np.float32)
        return (mx.array(np.ascontiguousarray(values.T)).T if turned else mx.array(values)), values

    a, a_values = operand((rows, 70), transposed[0])
    b, b_values = operand((70, 33), transposed[1])
    c, c_values = operand((rows, 33), False)
    found = []
    for way.value in (0, 8):
        found += [np.array(a @ b), np.array(mx.addmm(c, a, b, alpha=0.5, beta=2.0)) / 0.5 - 4 * c_values]
    np.testing.assert_allclose(found, [a_values @ b_values] * 4, atol=2e-5)


@needed
def test_what_the_result_held_before_does_not_matter(way: Any) -> None:
    """MLX's results are uninitialised memory, and 0 times a NaN is one."""
    import mlx.core as mx

    way.value = 8
    for _ in range(50):
        spoiled = mx.full((1, 4096), float("nan"))
        mx.eval(spoiled)
        del spoiled
        assert not np.isnan(np.array(mx.ones((1, 16)) @ mx.ones((16, 4096)))).any()


@needed
def test_mlx_takes_its_product_from_it_only_where_it_was_asked_for(tmp_path: Path) -> None:
    script = (
        "import ctypes, sys\n"
        "from workers import blas\n"
        "found = blas.prepare(sys.argv[1], 1, few=sys.argv[2] == 'few')\n"
        "import mlx.core as mx\n"
        "mx.eval(mx.ones((2, 2)) @ mx.ones((2, 2)))\n"
    )
    for asked in ("few", "none"):
        trace = tmp_path / asked
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), asked],
            env={**os.environ, "LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(trace)},
            check=True,
            capture_output=True,
            timeout=60,
        )
        lines = [line for file in tmp_path.glob(f"{asked}.*") for line in file.read_text().splitlines()]
        (bound,) = [line for line in lines if "libmlx.so" in line and "`cblas_sgemm'" in line]
        assert ("few-rows" in bound.partition(" to ")[2]) == (asked == "few")


@needed
@pytest.mark.parametrize("compiler", ["", "false", "/nonexistent/g++"])
def test_without_a_working_compiler_nothing_is_installed(compiler: str, tmp_path: Path, fast_blas: blas.Blas) -> None:
    assert few_rows.install(ctypes.CDLL(fast_blas.path), tmp_path, compiler) == 0
    assert not list(tmp_path.glob("*.so"))
