"""`make setup`: creates .venv and installs the locked packages and Starling itself. Standard library only.

Knows pip, the locks and the stamp that lets a second run stop at once; resolves nothing (tools/lock.py does).
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = ROOT / "pyproject.toml"
LOCKS = ROOT / "locks"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "starling-setup.json"
"""Written last: a .venv without it was interrupted or is not ours, and is made anew."""

PEERS_STAMP = VENV / "starling-peers"
"""The digest of the bench.txt that was installed."""

BACKENDS = ("cpu", "cuda12", "cuda13")
STAMP_PREFIX = "# For pyproject.toml's dependencies "
OLDEST, TOO_NEW = (3, 11), (3, 15)
OLDEST_GLIBC = (2, 35)
"""What MLX's Linux wheels are built for (manylinux_2_35)."""

NETWORK = frozenset(
    {"index-url", "extra-index-url", "no-index", "find-links", "cert", "client-cert", "proxy", "trusted-host"}
    | {"timeout", "default-timeout", "retries", "cache-dir", "no-cache-dir", "keyring-provider", "use-feature"}
)
"""The settings of pip that say how a package is reached. All others could move or change what is installed."""


class SetupError(Exception):
    """Why nothing can be set up here, and what to do about it."""


def check_machine(backend: str) -> None:
    """Raises SetupError where the locks hold nothing for this interpreter or machine."""
    found = f"{sys.executable} is Python {platform.python_version()}"
    if not OLDEST <= sys.version_info[:2] < TOO_NEW or platform.python_implementation() != "CPython":
        raise SetupError(
            f"Starling needs CPython 3.11 to 3.14, but {found}.\nName another: make setup PYTHON=python3.12"
        )
    machine = (sys.platform, platform.machine())
    if machine not in {("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")}:
        raise SetupError(f"MLX has no build for {machine}: it needs Linux on x86-64 or aarch64, or macOS on arm64.")
    if sys.platform == "darwin" and backend != "cpu":
        raise SetupError(f"BACKEND={backend} is for Linux; on macOS leave BACKEND out: MLX then uses Metal.")
    if sys.platform == "linux":
        libc, version = platform.libc_ver()
        if libc != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < OLDEST_GLIBC:
            raise SetupError(f"MLX's Linux wheels need glibc 2.35 or newer; here is {libc or 'musl'} {version}".strip())
    try:
        import ensurepip  # noqa: F401  # Debian takes it out of the standard library
        import venv  # noqa: F401
    except ImportError:
        raise SetupError(
            f"{found} and cannot make virtual environments (no ensurepip).\n"
            f"On Debian and Ubuntu: sudo apt-get install python3.{sys.version_info[1]}-venv"
        ) from None


def dependency_digest() -> str:
    """Of everything in pyproject.toml that a lock is made from."""
    import tomllib  # late: this file has to get as far as check_machine on an older Python

    tree = tomllib.loads(PYPROJECT.read_text())
    project = tree["project"]
    parts = (
        tree["build-system"]["requires"],
        project["requires-python"],
        project["dependencies"],
        project["optional-dependencies"],
        tree["tool"]["uv"],
    )
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def lock_files(backend: str) -> list[Path]:
    """What a backend is installed from. Raises SetupError as `checked_locks` does."""
    return checked_locks("base", backend)


def checked_locks(*names: str) -> list[Path]:
    """The locks of these names. Raises SetupError when they were not made from this pyproject.toml."""
    locks = [LOCKS / f"{name}.txt" for name in names]
    line = STAMP_PREFIX + dependency_digest()
    for lock in locks:
        if not lock.exists() or line not in lock.read_text().splitlines():
            raise SetupError(f"locks/{lock.name} does not belong to pyproject.toml's dependencies: run `make lock`.")
    return locks


def read_stamp() -> dict[str, Any]:
    """What the last complete set-up wrote; empty when there was none or its interpreter is gone."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and PYTHON.exists() else {}


def make_stamp(backend: str, locks: list[Path]) -> dict[str, str]:
    content = b"\0".join(path.read_bytes() for path in [PYPROJECT, *locks])
    return {
        "backend": backend,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "root": str(ROOT),
        "content": hashlib.sha256(content).hexdigest(),
    }


def distributions() -> set[str]:
    """The folders by which .venv's packages are known, as `mlx-0.31.0.dist-info`."""
    return {found.name for found in VENV.glob("lib/python3.*/site-packages/*.dist-info")}


def is_done(stamp: dict[str, str], before: dict[str, Any]) -> bool:
    """Whether the last set-up did what `stamp` says, and nothing of it was removed since."""
    installed: list[str] = before.get("installed") or []
    return before == {**stamp, "installed": installed} and installed != [] and distributions() >= set(installed)


def pip_environment() -> dict[str, str]:
    """The environment for pip, without settings that would install elsewhere or something else.

    A user's `target`, `user`, `constraint` or `no-binary` must not reach into .venv; how to reach an index must.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    listed = subprocess.run([PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if option in NETWORK and section in {"global", "install"}:
            kept[_variable(option)] = str(ast.literal_eval(value))
    for option in NETWORK:
        if _variable(option) in os.environ:
            kept[_variable(option)] = os.environ[_variable(option)]
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def _variable(option: str) -> str:
    return "PIP_" + option.upper().replace("-", "_")


def pip(arguments: list[str], environment: dict[str, str]) -> None:
    """Run .venv's pip and show one line of progress on a terminal. Raises SetupError when pip fails."""
    command = [str(PYTHON), "-m", "pip", "install", "--no-deps", "--progress-bar", "off", *arguments]
    seen = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("Collecting ") and sys.stdout.isatty():
                seen += 1
                print(f"\r  {seen:3} {line.split()[1]:60.60}", end="", flush=True)
    if seen:
        print("\r" + " " * 70, end="\r")
    if running.returncode:
        raise SetupError("pip failed (its message is above). `make setup` starts again from what it has fetched.")


def install(locks: list[Path], environment: dict[str, str]) -> None:
    """Exactly what these locks say, by their hashes."""
    requirements = [word for lock in locks for word in ("--requirement", str(lock))]
    pip(["--require-hashes", "--only-binary", ":all:", *requirements], environment)


def add_peers() -> None:
    """What only `make bench` needs, on top of a .venv that is set up."""
    (lock,) = checked_locks("bench")
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if PEERS_STAMP.exists() and PEERS_STAMP.read_text() == digest:
        return
    print("Installing the peers to measure against", flush=True)
    install([lock], pip_environment())
    verify()
    PEERS_STAMP.write_text(digest)


def verify() -> None:
    """Raises SetupError when .venv does not hold what was just installed, or holds torch."""
    code = "import importlib.metadata as m, json; print(json.dumps([d.name.lower() for d in m.distributions()]))"
    found = json.loads(subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, text=True, check=True).stdout)
    if missing := {"mlx", "mlx-whisper", "msgspec", "starling"} - set(found):
        raise SetupError(
            f"pip reported success, but {', '.join(sorted(missing))} is not in .venv: see `pip config list`."
        )
    if "torch" in found:
        raise SetupError("torch is in .venv. Nothing here needs it: rm -r .venv, then make setup.")


def set_up(backend: str | None) -> bool:
    """Bring .venv to what the locks say; True when there was something to do."""
    before = read_stamp()
    backend = backend or before.get("backend", BACKENDS[0])
    check_machine(backend)
    locks = lock_files(backend)
    stamp = make_stamp(backend, locks)
    if is_done(stamp, before):
        return False
    if any(before.get(key) != stamp[key] for key in ("backend", "python", "root")):
        # Two backends bring the same libmlx, scripts name their folder, and a half-made .venv can hold half a
        # package that pip takes for a whole one: a new one is the only sure thing.
        print(f"Creating .venv with Python {stamp['python']} for BACKEND={backend}", flush=True)
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    STAMP.unlink(missing_ok=True)
    print("Installing the locked packages (the first time takes a few minutes)", flush=True)
    environment = pip_environment()
    install(locks, environment)
    pip(["--no-build-isolation", "--no-index", "--editable", "."], environment)
    verify()
    partial = STAMP.with_suffix(".part")
    partial.write_text(json.dumps({**stamp, "installed": sorted(distributions())}))
    partial.replace(STAMP)
    print("Ready: .venv/bin/starling, or `make run`")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Create .venv and install Starling into it.")
    parser.add_argument("--backend", choices=BACKENDS, help="what MLX computes with (the one chosen last, else cpu)")
    parser.add_argument("--peers", action="store_true", help="also install what `make bench` measures against")
    arguments = parser.parse_args()
    with PYPROJECT.open() as one_at_a_time:
        # Two `make` at once: the second waits, then finds everything done. The lock goes with the process.
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        try:
            set_up(arguments.backend)
            if arguments.peers:
                add_peers()
        except SetupError as error:
            sys.exit(f"setup: {error}")
        except subprocess.CalledProcessError as error:
            sys.exit(f"setup: {' '.join(map(str, error.cmd))} failed with status {error.returncode}")
        except KeyboardInterrupt:
            sys.exit("\nsetup: interrupted; the next `make setup` repairs it")


if __name__ == "__main__":
    main()
