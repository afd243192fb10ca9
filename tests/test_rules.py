"""The rules of the house that a machine can check: who imports what, sizes, names, state, completeness."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from protocol.errors import BY_KIND, Kind
from service.errors import STATUS

ROOT = Path(__file__).parents[1]
ROOMS = ("protocol", "service", "workers")
SOURCES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
PYTHON = SOURCES + sorted(
    path.relative_to(ROOT) for room in ("tests", "benchmarks") for path in (ROOT / room).rglob("*.py")
)

MLX = {"mlx", "mlx_whisper"}
MLX_ROOMS = (
    "workers/backend.py",
    "workers/streams.py",
    "workers/cpu/",
    "workers/whisper/",
    "workers/llm/",
    "workers/embed/",
    "workers/oracle/",
    "workers/starter/",
)
DECODERS = {"soundfile", "av"}
NUMERIC = MLX | DECODERS | {"numpy", "soxr", "onnxruntime", "numba", "scipy", "torch"}

MAX_FILE = 400
"""Lines. The aim is 300."""
MAX_FUNCTION = 60
"""Lines. The aim is 50."""

MUTATORS = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "discard", "clear"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"), str(path))


def imports(path: Path) -> set[str]:
    """Dotted names of all that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def below(room: str) -> list[Path]:
    return [path for path in SOURCES if path.is_relative_to(room)]


def test_the_rooms_are_where_this_test_looks() -> None:
    assert {path.parts[0] for path in SOURCES} == set(ROOMS)
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", below("protocol"), ids=str)
def test_protocol_imports_the_standard_library_and_msgspec(path: Path) -> None:
    assert packages(path) - set(sys.stdlib_module_names) <= {"msgspec", "protocol"}


@pytest.mark.parametrize("path", below("service"), ids=str)
def test_service_imports_neither_workers_nor_what_only_they_need(path: Path) -> None:
    assert packages(path) & (NUMERIC | {"workers"}) == set()


@pytest.mark.parametrize("path", below("workers"), ids=str)
def test_workers_import_neither_the_service_nor_what_only_it_needs(path: Path) -> None:
    assert packages(path) & {"service", "starlette", "hypercorn", "sse_starlette"} == set()


@pytest.mark.parametrize("path", below("workers"), ids=str)
def test_only_the_models_rooms_import_mlx_and_only_media_opens_audio(path: Path) -> None:
    if not str(path.as_posix()).startswith(MLX_ROOMS):
        assert packages(path) & MLX == set()
    if not path.is_relative_to("workers/media"):
        assert packages(path) & DECODERS == set()


@pytest.mark.parametrize("path", [Path("workers/loop.py"), Path("workers/__main__.py")], ids=str)
def test_the_loop_and_the_worker_s_entry_import_no_engine_before_they_need_it(path: Path) -> None:
    top = {
        node.module
        for node in tree(path).body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("workers")
    }
    assert top <= {"workers.loop", "workers.heap", "workers.outbox", "workers.priority"}


def test_the_front_end_loads_neither_numpy_nor_mlx_nor_a_decoder() -> None:
    code = "import sys, service.app, service.__main__; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert set(loaded) & (NUMERIC | {"workers"}) == set()
    assert {"service", "protocol", "starlette"} <= set(loaded)


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_no_file_is_called_a_drawer(path: Path) -> None:
    drawers = {"util", "utils", "helper", "helpers", "common", "base", "misc", "shared"}
    assert {part.removesuffix(".py") for part in path.parts} & drawers == set()


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_files_and_functions_are_short_enough_to_read(path: Path) -> None:
    assert len((ROOT / path).read_text("utf-8").splitlines()) <= MAX_FILE
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION
    }
    assert long == {}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(tree(path)) or not (ROOT / path).read_text("utf-8").strip()


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_module_keeps_state(path: Path) -> None:
    assert list(_module_state(tree(path))) == []


def _module_state(module: ast.Module) -> Iterator[str]:
    """Each place that changes something of the module's: `global x`, `X[k] = v`, `X.append(v)`, `X += [v]`."""
    names = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Global):
            yield f"{node.lineno}: global {', '.join(node.names)}"
        for changed in _changed(node):
            if changed in names:
                yield f"{getattr(node, 'lineno', 0)}: changes {changed}"


def _changed(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            for target in targets:
                if isinstance(target, ast.Subscript | ast.Attribute) and isinstance(target.value, ast.Name):
                    yield target.value.id
        case ast.AugAssign(target=ast.Name(id=name)):
            yield name
        case ast.AugAssign(target=ast.Subscript(value=ast.Name(id=name)) | ast.Attribute(value=ast.Name(id=name))):
            yield name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in MUTATORS:
            yield name


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    global X\n    X = 1",
        "X = {}\ndef f(k):\n    X[k] = 1",
        "X: list[int] = []\ndef f():\n    X.append(1)",
        "X = 0\nX += 1",
        "X = {}\ndef f(k):\n    del X[k]",
    ],
)
def test_the_check_for_state_finds_it(code: str) -> None:
    assert len(list(_module_state(ast.parse(code)))) == 1


def test_a_table_that_nobody_changes_is_no_state() -> None:
    assert list(_module_state(ast.parse("X = {1: 2}\ndef f(k):\n    y = []\n    y.append(X[k])\n    return y"))) == []


def test_every_kind_has_a_status_and_a_class() -> None:
    assert set(STATUS) == set(Kind)
    assert set(BY_KIND) == set(Kind)
    assert {answer.status for answer in STATUS.values()} <= {
        400,
        401,
        403,
        404,
        405,
        409,
        413,
        415,
        429,
        499,
        500,
        503,
        504,
    }
