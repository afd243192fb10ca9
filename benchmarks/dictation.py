"""`python -m benchmarks --dictation`: what live dictation costs the one who speaks, beside posting the file at the end.

Recordings are fed at the speed they were spoken. Needs the corpus beside the checkout; measures, judges nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import psutil
import soundfile
from rich.console import Console
from rich.table import Table

from benchmarks.audio import read
from benchmarks.corpus import MANIFEST
from benchmarks.speaking import CHUNK, Said, Samples, say
from benchmarks.transcription import Transcribe, peer, through_http
from examples.dictate import Dictation, Refused
from protocol.settings import SAMPLE_RATE
from service.config import Config
from tests.e2e.server import Server, serving

SCORE = MANIFEST.parent / "score.py"
LENGTHS = ((0, 5), (5, 10), (10, 20), (20, 70))
"""Seconds; a row of the table each."""
FOUR_MINUTES, SPEAKER = "long-ljspeech", "long-ls-2033"
CROWDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
CROWD_SECONDS = 40
HOUR_MINUTES = 60
TEN_SECONDS = 10
ROUNDS = 5
"""Short dictations beside the long one."""
TITLE = "medians (p95), s"
PEERS = {"faster-whisper int8": "int8", "faster-whisper float32": "float32"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks --dictation", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="only these (default: all)")
    parser.add_argument("--seconds", type=float, default=300, help="of recordings up to 70 s to dictate (300)")
    parser.add_argument("--segmentation", choices=("vad", "window"), default="vad", help="of what is timed (vad)")
    parser.add_argument("--minutes", type=int, default=HOUR_MINUTES, help="of the long session (60)")
    parser.add_argument("--every", type=int, default=3, help="for error rates: each n-th recording only (3)")
    parser.add_argument("--model", default="whisper-base", help="a starter's name (default: whisper-base)")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    options = parser.parse_args(arguments)
    console = Console()
    if not MANIFEST.is_file():
        console.print(f"no recordings: {MANIFEST} is not there")
        return
    with serving(options.data_dir, "--whisper-model", options.model) as server:
        # What is slow once only belongs to none of the figures.
        say(server.url, recording(SPEAKER)[: 5 * SAMPLE_RATE], speed=0)
        for name in options.part or PARTS:
            began = time.monotonic()
            try:
                PARTS[name](console, server, options)
            except (Refused, TimeoutError, httpx.HTTPError) as error:
                # What the others say is worth as much without this one.
                console.print(f"{name} could not be measured: {error}")
            console.print(f"({name}: {time.monotonic() - began:.0f} s)")


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in MANIFEST.read_text().splitlines()]


def samples_of(row: dict[str, Any]) -> Samples:
    return np.round(read(str(MANIFEST.parent / row["file"])) * 32768).astype(np.int16)


def recording(name: str) -> Samples:
    return samples_of(next(row for row in rows() if row["id"] == name))


def chosen(seconds: float) -> Iterator[Samples]:
    """Recordings with speech of all lengths up to 70 s, evenly from the corpus, about `seconds` in all."""
    spoken = [row for row in rows() if row["transcript_status"] != "no speech"]
    short = sorted((row for row in spoken if row["duration_s"] <= LENGTHS[-1][1]), key=lambda row: row["duration_s"])
    step = max(1, round(sum(row["duration_s"] for row in short) / seconds))
    for row in short[::step]:
        yield samples_of(row)


def finish(console: Console, server: Server, options: argparse.Namespace) -> None:
    """(a) from the last chunk to the answer of finish, (b) from the end of an utterance to its text; and peers."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as processes:
        engines: dict[str, Transcribe] = {"posted at the end": through_http(server)}
        for name, compute_type in PEERS.items() if find_spec("faster_whisper") else ():
            engines[name] = processes.enter_context(peer("faster_whisper", options.model, compute_type))
        path = Path(folder) / "clip.wav"
        timed: list[tuple[float, Said, list[float]]] = []
        for number, samples in enumerate(chosen(options.seconds)):
            soundfile.write(path, samples, SAMPLE_RATE)
            if not number:
                for transcribe in engines.values():
                    transcribe(path)
            said = say(server.url, samples, segmentation=options.segmentation)
            timed.append((len(samples) / SAMPLE_RATE, said, [engine(path)[1] for engine in engines.values()]))
    table = Table(
        "length",
        "number",
        "last chunk to finish",
        "end of utterance to its text",
        *engines,
        title=TITLE,
    )
    for low, high in (*LENGTHS, (0, LENGTHS[-1][1])):
        if among := [each for each in timed if low <= each[0] < high]:
            spoken = [each for _, each, _ in among]
            table.add_row(
                f"{low} to {high} s",
                str(len(among)),
                _spread([each.finish_s for each in spoken]),
                _spread([lag for each in spoken for lag in each.lags_s]),
                *(_spread([seconds[place] for _, _, seconds in among]) for place in range(len(engines))),
            )
    console.print(table)


def long(console: Console, server: Server, options: argparse.Namespace) -> None:
    """(a) again, for a dictation of four minutes and for its first ten seconds."""
    whole = recording(FOUR_MINUTES)
    said = say(server.url, whole, segmentation=options.segmentation)
    short = [
        say(server.url, whole[: TEN_SECONDS * SAMPLE_RATE], segmentation=options.segmentation) for _ in range(ROUNDS)
    ]
    console.print(
        f"last chunk to finish: {said.finish_s:.2f} s after {len(whole) / SAMPLE_RATE:.0f} s of dictation, "
        f"{_spread([each.finish_s for each in short])} s after {TEN_SECONDS} s"
    )


def partials(console: Console, server: Server, options: argparse.Namespace) -> None:
    """(f) how often `stable` was a prefix of what was committed; and what partial texts cost (a) and (b)."""
    said = [say(server.url, samples, partials=True) for samples in chosen(options.seconds)]
    promises = [promise for each in said for promise in each.promises if promise[0]]
    broken = [(stable, commit) for stable, commit, _ in promises if not commit.startswith(stable)]
    seconds = sum((each.fed - each.began) for each in said)
    count = sum(promise[2] for each in said for promise in each.promises)
    console.print(
        f"partial texts: {count / seconds:.2f} a second; stable a prefix of the commit in "
        f"{100 * (1 - len(broken) / max(1, len(promises))):.1f} % of {len(promises)} utterances; "
        f"last chunk to finish {_spread([each.finish_s for each in said])} s, "
        f"end of utterance to its text {_spread([lag for each in said for lag in each.lags_s])} s"
    )
    for stable, commit in broken:
        console.print(f"  stable {stable!r}\n  commit {commit!r}", markup=False)


def errors(console: Console, server: Server, options: argparse.Namespace) -> None:
    """(c) error rates of the session's text and of the request's, over the whole corpus."""
    corpus = rows()[:: options.every]
    post = through_http(server)

    def request(samples: Samples, path: Path) -> str:
        soundfile.write(path, samples, SAMPLE_RATE)
        return post(path)[0]

    def session(segmentation: str) -> Callable[[Samples, Path], str]:
        return lambda samples, _: say(server.url, samples, speed=0, segmentation=segmentation).text

    ways = {"one request": request, "window": session("window"), "vad": session("vad")}
    table = Table("", "WER", "CER (zh, ja)", "speech where there is none", title="over the corpus, %")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        texts: dict[str, list[str]] = {}
        for name, way in ways.items():

            def transcribe(row: dict[str, Any], way: Callable[[Samples, Path], str] = way) -> str:
                return way(samples_of(row), Path(folder) / f"{row['id']}.wav")

            texts[name] = list(pool.map(transcribe, corpus))
            scores = _scores(Path(folder), corpus, texts[name])
            talking = sum(bool(text) for _, text in scores["no_speech"])
            table.add_row(name, *(_rate(scores, unit) for unit in ("WER", "CER")), str(talking))
    console.print(table)
    same = sum(mine == other for mine, other in zip(texts["window"], texts["one request"], strict=True))
    console.print(f"window: {same} of {len(corpus)} texts are those of one request")


def _scores(folder: Path, corpus: list[dict[str, Any]], texts: list[str]) -> dict[str, Any]:
    hypotheses, output = folder / "hypotheses.jsonl", folder / "scores.json"
    lines = [json.dumps({"id": row["id"], "text": text}) for row, text in zip(corpus, texts, strict=True)]
    hypotheses.write_text("\n".join(lines))
    command = [sys.executable, str(SCORE), str(MANIFEST), str(hypotheses), "--json", str(output)]
    subprocess.run(command, check=True, capture_output=True)
    scores: dict[str, Any] = json.loads(output.read_text())
    return scores


def _rate(scores: dict[str, Any], unit: str) -> str:
    group = scores["groups"].get(f"all  {unit}")
    return f"{100 * group['rate']:.2f}" if group else "-"


def hour(console: Console, server: Server, options: argparse.Namespace) -> None:
    """(d) what a chunk costs in a session that grows to an hour, fed as fast as it goes, and the processes' memory."""
    a_minute = 60 * SAMPLE_RATE
    whole = np.resize(recording(FOUR_MINUTES), options.minutes * a_minute)
    table = Table("minute", "POST of a chunk, ms", "front end, MiB", "live media worker, MiB", title="median (p95)")
    with Dictation(server.url, "audio/pcm;encoding=s16le") as session:
        for minute in range(options.minutes):
            spent = []
            for start in range(minute * a_minute, (minute + 1) * a_minute, CHUNK):
                chunk = whole[start : start + CHUNK].astype("<i2").tobytes()
                started = time.perf_counter()
                session.add(chunk)
                spent.append((time.perf_counter() - started) * 1000)
            if minute % 10 == 9 or minute in (0, options.minutes - 1):
                front, (live,) = psutil.Process(server.process.pid), server.workers("live")
                memory = [f"{process.memory_info().rss / (1 << 20):.0f}" for process in (front, live)]
                table.add_row(str(minute + 1), _spread(spent), *memory)
            if minute == 0:
                first = median(spent)
        session.remove()
    console.print(table)
    console.print(
        f"a chunk in minute {options.minutes} costs {median(spent) / first:.2f} times what it does in minute 1"
    )


def crowd(console: Console, server: Server, options: argparse.Namespace) -> None:
    """(e) how many may speak at the same time before (b) has doubled."""
    speech = recording(SPEAKER)[: CROWD_SECONDS * SAMPLE_RATE]
    alone, held = 0.0, 0
    for number in CROWDS:
        waits = [CROWD_SECONDS / 4 * place / number for place in range(number)]
        with ThreadPoolExecutor(number) as pool:
            said = list(pool.map(lambda wait_s: say(server.url, speech, wait_s=wait_s), waits))
        lags = [lag for each in said for lag in each.lags_s]
        console.print(
            f"{number} at once: end of utterance to its text {_spread(lags)} s, "
            f"last chunk to finish {_spread([each.finish_s for each in said])} s"
        )
        wait = median(lags) if lags else float("inf")
        alone = alone or wait
        if wait > 2 * alone:
            break
        held = number
    more = "more were not tried" if held == CROWDS[-1] else f"with {number} it has doubled"
    console.print(f"{held} can speak at once before the wait of one alone doubles; {more}")


def _spread(values: Sequence[float]) -> str:
    """The median and, in brackets, the 95th percentile."""
    return f"{median(values):.2f} ({np.percentile(values, 95):.2f})" if values else "-"


PARTS: dict[str, Callable[[Console, Server, argparse.Namespace], None]] = {
    "finish": finish,
    "long": long,
    "partials": partials,
    "errors": errors,
    "hour": hour,
    "crowd": crowd,
}

if __name__ == "__main__":
    main()
