"""`starling get` and `starling models`: what the workers' side knows of models, for a terminal.

Knows the lines that `python -m workers.hub` prints; knows no model and no hub.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from protocol.events import ModelKind
from service.config import Config


class Entry(msgspec.Struct, frozen=True):
    """One line of `python -m workers.hub list`."""

    id: str
    kind: ModelKind
    source: str
    size_bytes: int
    path: str
    ready: bool


def get(model: str, config: Config) -> int:
    """Download or convert `model` now. The exit status; the progress and the reason go to stderr."""
    command = _hub("get", model, "--data-dir", config.data_dir)
    return subprocess.run([*command, "--offline"] if config.offline else command, check=False).returncode


def show(config: Config, *, as_json: bool) -> int:
    """Print a table of the models here, or the workers' own lines."""
    listed = subprocess.run(_hub("list", "--data-dir", config.data_dir), stdout=subprocess.PIPE, check=False)
    if listed.returncode:
        return listed.returncode
    if as_json:
        sys.stdout.buffer.write(listed.stdout)
        return 0
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "from", "size", "state"):
        table.add_column(heading, justify="right" if heading == "size" else "left", no_wrap=True)
    for entry in parse(listed.stdout):
        size = f"{entry.size_bytes / 1e6:.0f} MB" if entry.size_bytes else ""
        table.add_row(entry.id, entry.source, size, state(entry))
    Console(soft_wrap=True, highlight=False).print(table)
    return 0


def parse(lines: bytes) -> list[Entry]:
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Entry)
    return decoder.decode_lines(lines)


def state(entry: Entry) -> str:
    """In words, with what would change it."""
    if entry.ready:
        return "ready"
    if entry.source != "starter":
        return f"not whole: starling get {entry.id}"
    return "damaged, converted again on first use" if entry.size_bytes else "converted on first use"


def _hub(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "workers.hub", *arguments]
