"""`python -m benchmarks --overload`: 200 clients at once. Does /health answer, are refusals quick, is nothing lost?

The clients (a process of their own) each send a short recording, or a chat that is streamed, again and again; who is
refused comes back when it was told to. Meanwhile this process asks /health every 20 ms over one connection and watches
memory. Figures are of all answers, none left out.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import tempfile
import time
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles

import httpx
import psutil

from benchmarks.audio import clips
from service.config import Config
from tests.e2e.server import Server, serving

LOOK_S = 0.02
MIB = 1 << 20
END_S = 200.0
"""For what was accepted when no more is sent."""


@dataclass
class Told:
    """What the clients saw. Seconds."""

    refused_s: list[float] = field(default_factory=list)
    served_s: list[float] = field(default_factory=list)
    unhinted: int = 0
    """Refusals without Retry-After."""
    broken: Counter[str] = field(default_factory=Counter)
    """Whatever was neither served whole nor refused with 429."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks --overload", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long new requests are sent (60)")
    parser.add_argument("--chats", type=int, default=40, help="how many of the clients chat (40)")
    parser.add_argument("--whisper-model", default="whisper-tiny.en")
    parser.add_argument("--llm-model", default="smollm2-135m-instruct")
    parser.add_argument("--queue-limit", default="64")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    options = parser.parse_args(arguments)
    flags = ("--whisper-model", options.whisper_model, "--llm-model", options.llm_model)
    with serving(options.data_dir, *flags, "--queue-limit", options.queue_limit) as server:
        _report(server, options)


def _report(server: Server, options: argparse.Namespace) -> None:
    before, quiet = _memory(server), _health(server.url, 2.0)
    print(f"{os.cpu_count()} cores, {options.clients} clients, {options.chats} of them chat, {options.seconds:g} s")
    print(f"/health at rest: {_spread(quiet)}")
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    arguments = (theirs, server.url, options.clients, options.chats, options.seconds)
    crowd = multiprocessing.get_context("spawn").Process(target=_crowd, args=arguments)
    crowd.start()
    theirs.close()  # So that its end is seen, should it fail.
    ours.recv()  # They are there and begin.
    looked, later, peak, middle = list[float](), list[float](), 0.0, 0.0
    began = time.monotonic()
    while not ours.poll():
        spent = time.monotonic() - began
        # In the end only those are left that were accepted, and wait.
        (looked if spent < options.seconds else later).extend(_health(server.url, 1.0))
        front = _memory(server)["front end"]
        peak = max(peak, front)
        middle = middle or (front if spent > options.seconds / 2 else 0.0)
    told: Told = ours.recv()
    crowd.join()
    print(f"/health while they ask: {_spread(looked)}")
    print(f"/health while those that were accepted end: {_spread(later)}")
    print(f"served whole: {len(told.served_s)}: {_spread(told.served_s)}")
    print(f"refused with 429: {len(told.refused_s)}, without a hint {told.unhinted}: {_spread(told.refused_s)}")
    print(f"neither: {dict(told.broken) or 0}")
    after = _memory(server)
    print(f"front end: {before['front end']:.0f} MiB before, {middle:.0f} half way, {peak:.0f} at most")
    print("; ".join(f"{name}: {before[name]:.0f} MiB before, {after[name]:.0f} after" for name in sorted(before)))
    print(f"files left in the spool: {len(server.spooled())}")


def _health(url: str, seconds: float) -> list[float]:
    """How long each answer took, asked over a connection of its own that is kept."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    took, end = list[float](), time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        took.append(time.perf_counter() - began)
        time.sleep(LOOK_S)
    connection.close()
    return took


def _memory(server: Server) -> dict[str, float]:
    """MiB resident, by process."""
    found = {"front end": psutil.Process(server.process.pid).memory_info().rss / MIB}
    return found | {
        line["name"]: line["rss_bytes"] / MIB for line in httpx.get(f"{server.url}/stats").json()["workers"]
    }


def _spread(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "too few"
    cut = quantiles(seconds, n=100, method="inclusive")
    shown = f"median {median(seconds) * 1000:.1f} ms, 99th percentile {cut[98] * 1000:.1f} ms"
    return f"{shown}, longest {max(seconds) * 1000:.1f} ms ({len(seconds)} answers)"


def _crowd(pipe: Connection, url: str, clients: int, chats: int, seconds: float) -> None:
    """All clients, in a process of their own."""
    told = Told()
    recording = min(clips(Path(tempfile.gettempdir())), key=lambda path: path.stat().st_size).read_bytes()

    async def all_of_them() -> None:
        async with AsyncExitStack() as open_ones, asyncio.TaskGroup() as group:
            # Each has its own: a pool that 200 share spends seconds on choosing connections.
            timeout = httpx.Timeout(END_S, connect=30)
            own = [httpx.AsyncClient(base_url=url, timeout=timeout, verify=False) for _ in range(clients)]
            for client in own:
                await open_ones.enter_async_context(client)
            pipe.send("here")
            end = time.monotonic() + seconds
            for number, client in enumerate(own):
                body = None if number < chats else recording
                group.create_task(_client(client, told, body, f"client {number}", end))

    asyncio.run(all_of_them())
    pipe.send(told)


async def _client(client: httpx.AsyncClient, told: Told, recording: bytes | None, name: str, end: float) -> None:
    named = {"x-starling-client": name}
    while time.monotonic() < end:
        began = time.perf_counter()
        try:
            if recording is None:
                status, hints = await _chat(client, named)
            else:
                answer = await client.post("/v1/audio/transcriptions", files={"file": recording}, headers=named)
                status, hints = answer.status_code, answer.headers
        except (httpx.HTTPError, json.JSONDecodeError, AssertionError) as error:
            told.broken[type(error).__name__] += 1
            continue
        took = time.perf_counter() - began
        if status == httpx.codes.OK:
            told.served_s.append(took)
        elif status == httpx.codes.TOO_MANY_REQUESTS:
            told.refused_s.append(took)
            told.unhinted += "retry-after" not in hints
            await asyncio.sleep(int(hints.get("retry-after-ms", 1000)) / 1000)
        else:
            told.broken[str(status)] += 1


async def _chat(client: httpx.AsyncClient, named: dict[str, str]) -> tuple[int, httpx.Headers]:
    """A short one, streamed. It must end as streams end."""
    asked = {"messages": [{"role": "user", "content": "Name three birds."}], "max_tokens": 24, "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=asked, headers=named) as answer:
        said = (await answer.aread()).decode()
        if answer.status_code == httpx.codes.OK:
            assert said.endswith("data: [DONE]\n\n") and '"error"' not in said, "a stream was cut"
        return answer.status_code, answer.headers
