"""Threads that compute together, where memory or threads run out: an error, no crash and no wait without end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workers import blas, native


def test_without_memory_or_threads_there_is_an_error_and_no_crash(tmp_path: Path) -> None:
    if sys.platform != "linux" or not blas.compiler():
        pytest.skip("no C++ compiler, or a system whose threads cannot be made to fail")
    source, made = Path(__file__).with_name("crew.cpp"), tmp_path / "crew"
    headers = native.HEADERS[0].parent
    command = [blas.compiler(), "-std=c++17", "-O1", "-pthread", f"-I{headers}", str(source), "-o", str(made), "-ldl"]
    subprocess.run(command, check=True, timeout=100)
    found = subprocess.run([made], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (0, "fine\n"), found.stderr
