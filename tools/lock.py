"""`make lock`: writes locks/*.txt from pyproject.toml. Knows uv; installs nothing into .venv.

base.txt holds what every backend needs, cpu.txt, cuda12.txt and cuda13.txt what each adds, bench.txt the peers,
microphone.txt the example's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tools.setup import BACKENDS, LOCKS, PYPROJECT, STAMP_PREFIX, dependency_digest

UV = "uv==0.13.9"
COMPILE = [
    *("--quiet", "--universal", "--python-version", "3.11", "--only-binary", ":all:", "--generate-hashes"),
    *("--no-annotate", "--no-header", "--no-emit-index-url", "--extra", "starter", "--extra", "dev"),
]

MACHINES = (
    "((platform_machine == 'arm64' and sys_platform == 'darwin')"
    " or (platform_machine == 'aarch64' and sys_platform == 'linux')"
    " or (platform_machine == 'x86_64' and sys_platform == 'linux'))"
)
SHORTER = {
    # setup.py refuses every other interpreter and machine before pip reads a lock, so these say nothing.
    " and platform_python_implementation != 'PyPy'": "",
    "implementation_name == 'cpython' and ": "",
    "python_full_version < '3.15' and ": "",
    f" and {MACHINES}": "",
    f" ; {MACHINES}": "",
    "((platform_machine == 'aarch64' and sys_platform == 'linux')"
    " or (platform_machine == 'x86_64' and sys_platform == 'linux'))": "sys_platform == 'linux'",
    "platform_machine == 'arm64' and sys_platform == 'darwin'": "sys_platform == 'darwin'",
}


def shorten(lock: str) -> str:
    """The same lock without the parts of its markers that hold on every machine we install on."""
    for long, short in SHORTER.items():
        lock = lock.replace(long, short)
    return lock


def entries(lock: str) -> list[str]:
    """One string for each requirement: its line and its hashes."""
    return [entry.rstrip("\n") + "\n" for entry in lock.replace("\n    --hash", "\0--hash").splitlines(keepends=True)]


def compile_lock(uv: Path, extras: list[str], seed: str, folder: Path) -> list[str]:
    """What uv resolves for these extras, keeping the versions in `seed` where it can."""
    target = folder / "out.txt"
    target.write_text(seed)
    command = [str(uv), "pip", "compile", str(PYPROJECT), *COMPILE, "--output-file", str(target)]
    subprocess.run([*command, *(word for extra in extras for word in ("--extra", extra))], check=True)
    return entries(target.read_text())


def write(name: str, comment: str, lines: list[str]) -> None:
    text = shorten("".join(lines).replace("\0--hash", "\n    --hash"))
    LOCKS.mkdir(exist_ok=True)
    (LOCKS / f"{name}.txt").write_text(
        f"# {comment} Made by `make lock`; do not edit.\n{STAMP_PREFIX}{dependency_digest()}\n{text}"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        uv = folder / "venv" / "bin" / "uv"
        subprocess.run([uv.parent / "python", "-m", "pip", "install", "--quiet", UV], check=True)
        base = compile_lock(uv, [], "", folder)
        seed = "".join(base).replace("\0--hash", "\n    --hash")
        write("base", "What every backend needs.", base)
        for backend in BACKENDS:
            both = compile_lock(uv, [backend], seed, folder)
            if missing := set(base) - set(both):
                sys.exit(f"{backend} needs other versions than the other backends: {sorted(missing)}")
            write(backend, f"What BACKEND={backend} adds to base.txt.", [entry for entry in both if entry not in base])
        for extra, use in (("bench", "`make bench`"), ("microphone", "`examples/dictate.py --microphone`")):
            more = compile_lock(uv, [extra], seed, folder)
            write(extra, f"What {use} adds to base.txt.", [entry for entry in more if entry not in base])


if __name__ == "__main__":
    main()
