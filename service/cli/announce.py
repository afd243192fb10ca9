"""What `serve` prints while its workers load, and when they have or cannot. Knows words; changes nothing."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from protocol.events import Backend, Loading
from service.cli.say import say
from service.worker import Worker

LOOK_S = 0.1
"""A person does not notice, and looking costs a few attribute reads."""


BESIDE: Final[Mapping[str, str]] = MappingProxyType({"llm": "not in chats", "embedding": "makes no embeddings"})
"""Kinds of workers without which speech is served all the same, and what is not."""


async def announce(workers: Iterable[Worker], command: str) -> None:
    """Print each worker's progress, then the command that uses them, or why not. Ends with the first verdict."""
    waiting = list(workers)
    said: dict[str, str] = {}
    while waiting:
        for worker in list(waiting):
            if worker.failure is not None:
                say(f"not ready: {worker.failure.message}")
                if kind_of(worker) in BESIDE:
                    waiting.remove(worker)
                    say(f"The service answers, but {BESIDE[kind_of(worker)]}; `starling doctor` says more.")
                    continue
                say("The service answers, but cannot transcribe; `starling doctor` says more.")
                return
            if worker.ready is None and worker.state == "idle":
                waiting.remove(worker)
                say(f"on demand: {worker.name.partition(':')[2]}")
            elif worker.ready is not None:
                waiting.remove(worker)
                if (model := worker.ready.model) is not None:
                    say(f"ready: {model.id} ({model.dtype}) on {backend(worker.ready.backend)}")
            elif worker.loading is not None and said.get(worker.name) != (line := progress(worker.loading)):
                said[worker.name] = line
                say(line)
        await asyncio.sleep(LOOK_S)
    say(f"\n  {command}\n")


def kind_of(worker: Worker) -> str:
    """What its pool is called, without the model that it has where there are several."""
    return worker.name.partition(":")[0]


def progress(loading: Loading) -> str:
    """In steps of ten percent, so that a log does not fill with it."""
    if loading.total <= 0:
        return f"{loading.message} …"
    return f"{loading.message} … {loading.done * 10 // loading.total * 10}% of {loading.total / 1e6:.0f} MB"


def backend(found: Backend) -> str:
    """One line; more, and loud, when it is the slow one."""
    parts = [f"MLX {found.version}"] if found.version else []
    parts += [found.blas] if found.blas else []
    text = f"{found.name} ({', '.join(parts)})" if parts else found.name
    if found.name == "cpu" and not found.compiler:
        text += "\nnote: no C++ compiler (g++); without one models run several times slower"
    if found.slow:
        text += "\nWARNING: MLX computes with the reference BLAS, about fifty times slower: run `starling doctor`"
    return text


def curl(url: str, uds: str = "", *, keyed: bool = False) -> str:
    """A command that works as pasted: the recording is part of the package. A key is the reader's to fill in."""
    parts = ["curl", f"-F file=@{shlex.quote(str(files('service') / 'sample.flac'))}"]
    parts += ['-H "Authorization: Bearer $STARLING_API_KEY"'] if keyed else []
    parts += [f"--unix-socket {shlex.quote(uds)}"] if uds else []
    return " ".join([*parts, f"{'http://localhost' if uds else url}/v1/audio/transcriptions"])
