"""Bytes that were right once: frames for the decoder of the pipe, recordings for a running service, flipped and cut.

`python -m tests.e2e.flipping [--seconds N] [--seed N]` is the long run, over a service of its own.
Knows bytes and what may come of them; knows no format.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import httpx
import msgspec
import numpy as np

from protocol.events import FromWorker
from protocol.jobs import ToWorker
from protocol.settings import Settings
from protocol.wire import Codec, FrameError
from tests import audio_inputs as make
from tests.e2e.server import Server, serving
from tests.speech import speak

GOLDEN = Path(__file__).parents[1] / "golden"
UNIONS: dict[str, Any] = {"down": ToWorker, "up": FromWorker, "settings": Settings}
EACH = 3
"""Recordings of each kind in a round."""
AT_ONCE = 4
"""Recordings on their way."""
PATIENCE_S = 120
ALLOWED = frozenset((200, 400, 413, 429, 504))
"""A recording is heard, refused for what it is, or has to wait."""
INTERESTING = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)


@dataclass
class Found:
    """What came of it."""

    frames: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def mutated(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """`data` with a few of these: bytes flipped, anywhere or near its beginning, a piece taken out, repeated, put in
    from another input, overwritten; or cut off."""
    broken = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        size = max(1, len(broken))
        at = chance.randrange(min(size, 256)) if chance.random() < 0.5 else chance.randrange(size)
        length = chance.choice((1, 2, 4, 16, 300))
        match chance.randrange(7):
            case 0 if broken:
                broken[at % len(broken)] ^= 1 << chance.randrange(8)
            case 1:
                broken[at : at + 1] = bytes((chance.choice(INTERESTING),))
            case 2:
                del broken[at : at + length]
            case 3:
                broken[at:at] = broken[at : at + length]
            case 4:
                other = chance.choice(others)
                start = chance.randrange(max(1, len(other)))
                broken[at : at + length] = other[start : start + length]
            case 5:
                broken[at : at + length] = chance.randbytes(length)
            case _ if chance.random() < 0.3:
                del broken[at:]
    return bytes(broken)


def flip_frames(seed: int, inputs: int, found: Found) -> None:
    """Each is read as a worker and as the service read them: a message, the end, or a FrameError comes of it."""
    chance = random.Random(seed)
    files = [msgspec.json.decode(path.read_bytes()) for path in sorted(GOLDEN.glob("*.json"))]
    whole = [(bytes.fromhex(file["hex"]), file["direction"]) for file in files]
    codecs = {way: (Codec[Any](union), get_args(union)) for way, union in UNIONS.items()}
    with asyncio.Runner() as runner:
        for number in range(inputs):
            frame, way = chance.choice(whole)
            data = mutated(frame, [each for each, _ in whole], chance)
            if chance.random() < 0.5:  # Its length right again, so that what is in it is looked at.
                data = max(0, len(data) - 4).to_bytes(4, "big") + data[4:]
            codec, messages = codecs[way]
            for reader in ("blocking", "asyncio"):
                try:
                    read = codec.read(io.BytesIO(data)) if reader == "blocking" else runner.run(_read(codec, data))
                    assert read is None or isinstance(read[1], messages)
                    found.frames["the end" if read is None else "a message"] += 1
                except FrameError:
                    found.frames["refused"] += 1
                except Exception as error:
                    found.failures.append(f"frame {number} of seed {seed}, {reader}: {error!r}: {data.hex()[:400]}")


async def _read(codec: Codec[Any], data: bytes) -> tuple[int, Any] | None:
    pipe = asyncio.StreamReader()
    pipe.feed_data(data)
    pipe.feed_eof()
    return await codec.read_async(pipe)


def flip_files(server: str, seed: int, inputs: int, found: Found) -> None:
    """Recordings of all kinds, damaged: as files to be transcribed, and as chunks of dictations."""
    with httpx.Client(base_url=server, timeout=PATIENCE_S) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        for kind, status, said in pool.map(lambda each: _sent(client, *each), _damaged(random.Random(seed), inputs)):
            found.files[f"{kind} {status}"] += 1
            if status not in ALLOWED:
                found.failures.append(f"{kind}, seed {seed}: {status} {said}")


def _damaged(chance: random.Random, inputs: int) -> Iterator[tuple[str, bytes, bool]]:
    """(kind, bytes, whether to transcribe it). Transcribing costs the most, and damage is found before."""
    sentence = speak("Quick fox.")[0].astype(np.float32) / 32768
    whole = {kind: write(sentence) for kind, write in make.CONTAINERS.items()}
    for number in range(inputs):
        kind = list(whole)[number % len(whole)]
        yield kind, mutated(whole[kind], list(whole.values()), chance), chance.random() < 0.25


def _sent(client: httpx.Client, kind: str, data: bytes, transcribe: bool) -> tuple[str, int, str]:
    try:
        if transcribe:
            answer = client.post("/v1/audio/transcriptions", files={"file": data})
        else:
            made = client.post("/v1/audio/sessions", json={})
            url = f"/v1/audio/sessions/{made.json()['id']}"
            answer = client.post(f"{url}/audio", content=data, headers={"content-type": "application/octet-stream"})
            client.delete(url).raise_for_status()
    except (httpx.HTTPError, LookupError) as error:
        return kind, 0, repr(error)
    return kind, answer.status_code, answer.text[:300]


def flip(server: Server, seed: int, *, frames: int, seconds: float = 0.0) -> Found:
    """Both: so many frames, and recordings until the time is over, of each kind a few at least."""
    found, end, rounds = Found(), time.monotonic() + seconds, 0
    flip_frames(seed, frames, found)
    while not rounds or time.monotonic() < end:
        flip_files(server.url, seed + rounds, EACH * len(make.CONTAINERS), found)
        rounds += 1
    if server.process.poll() is not None:
        found.failures.append(f"the front end has ended with {server.process.returncode}")
    if "Traceback" in server.log:
        found.failures.append(server.log[server.log.index("Traceback") :][:3000])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.flipping", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    wanted = parser.parse_args()
    models = Path.home() / ".cache" / "starling-tests"
    with serving(models, "--whisper-model", "whisper-tiny.en") as server:
        found = flip(server, wanted.seed, frames=wanted.frames, seconds=wanted.seconds)
        stats = httpx.get(f"{server.url}/stats").json()["workers"]
    statuses = Counter[str]()
    for name, times in found.files.items():
        statuses[name.rpartition(" ")[2]] += times
    told = [f"{found.frames.total()} readings of frames: {dict(found.frames)}"]
    told.append(f"{found.files.total()} recordings: {dict(statuses)}")
    told.append(f"workers that were started again: {sum(line['restarts'] for line in stats)}")
    told += [f"{len(found.failures)} failures (seed {wanted.seed})", *found.failures, ""]
    sys.stdout.write("\n".join(told))
    sys.exit(1 if found.failures else 0)


if __name__ == "__main__":
    main()
