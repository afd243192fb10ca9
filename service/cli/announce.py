"""What `serve` prints while its workers load, and when they have or cannot. Knows words; changes nothing."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable
from importlib.resources import files

from protocol.events import Backend, Loading
from service.cli.say import say
from service.worker import Worker

LOOK_S = 0.1
"""A person does not notice, and looking costs a few attribute reads."""


async def announce(workers: Iterable[Worker], url: str) -> None:
    """Print each worker's progress, then how to use them all, or why not. Ends with the first verdict."""
    waiting = list(workers)
    said: dict[str, str] = {}
    while waiting:
        for worker in list(waiting):
            if worker.failure is not None:
                say(f"not ready: {worker.failure.message}")
                if worker.name == "llm":
                    waiting.remove(worker)
                    say("The service answers, but not in chats; `starling doctor` says more.")
                    continue
                say("The service answers, but cannot transcribe; `starling doctor` says more.")
                return
            if worker.ready is not None:
                waiting.remove(worker)
                if (model := worker.ready.model) is not None:
                    say(f"ready: {model.id} ({model.dtype}) on {backend(worker.ready.backend)}")
            elif worker.loading is not None and said.get(worker.name) != (line := progress(worker.loading)):
                said[worker.name] = line
                say(line)
        await asyncio.sleep(LOOK_S)
    say(f"\n  {curl(url)}\n")


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
        text += "\nnote: no C++ compiler (g++); some of MLX's CPU kernels run slower without one"
    if found.slow:
        text += "\nWARNING: MLX computes with the reference BLAS, about fifty times slower: run `starling doctor`"
    return text


def curl(url: str) -> str:
    """A command that works as pasted: the recording is part of the package."""
    sample = str(files("service") / "sample.flac")
    return f"curl -F file=@{shlex.quote(sample)} {url}/v1/audio/transcriptions"
