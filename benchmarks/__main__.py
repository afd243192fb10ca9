"""`python -m benchmarks`: every measurement in turn, on a machine that should be doing nothing else."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks import chaos, dictation, llm, overload, shapes
from benchmarks.audio import clips, crowd
from benchmarks.front_end import resident_mib, seconds_to_listen
from benchmarks.transcription import Timed, compare, peer, through_http, together
from service.config import Config
from tests.e2e.server import Server, serving

HTTP, IN_PROCESS, SHORT = "starling, HTTP", "starling, in process", "starling, HTTP, audio_ctx auto"
PEERS = ("mlx-whisper", "faster-whisper float32", "faster-whisper int8", "whisper.cpp")


def main() -> None:
    others = {
        "--dictation": dictation.main,
        "--llm": llm.main,
        "--shapes": shapes.main,
        "--chaos": chaos.main,
        "--overload": overload.main,
    }
    if sys.argv[1:2] and sys.argv[1] in others:
        others[sys.argv[1]](sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="as the first `--dictation`: live dictation; `--llm`: the language model; `--shapes`: shaped answers; "
        "`--chaos`: workers that are killed at random; `--overload`: 200 clients",
    )
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each (default: 5)")
    parser.add_argument("--model", default="whisper-base", help="a starter's name (default: whisper-base)")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    parser.add_argument("--without", action="append", default=[], choices=PEERS, help="leave a peer out")
    parser.add_argument("--clip", type=int, action="append", help="only these, counted from 0, the shortest first")
    options = parser.parse_args()
    console = Console()
    console.print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    console.print(f"front end listens after {seconds_to_listen(options.data_dir, options.rounds):.2f} s")
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(options.data_dir, "--whisper-model", options.model) as server,
    ):
        rest, peak = resident_mib(server)
        console.print(f"front end resident: {rest:.0f} MiB at rest, {peak:.0f} MiB while 150 MB pass through")
        files = clips(Path(folder))
        _speed(console, server, options, [files[number] for number in options.clip or range(len(files))])
        _memory(console, server, "speech worker resident after these")
        apart, at_once, same = together(through_http(server), crowd(Path(folder)), max(1, options.rounds // 2))
        console.print(
            f"8 files of 30 s: {apart.median:.1f} s one after another, {at_once.median:.1f} s at once, "
            f"ratio {at_once.ratio(apart):.2f}, texts {'the same' if same else 'DIFFER'}"
        )
        _memory(console, server, "speech worker resident after the crowd")


def _speed(console: Console, server: Server, options: argparse.Namespace, files: list[Path]) -> None:
    model, data_dir = options.model, str(options.data_dir)
    arguments = {
        "mlx-whisper": ("mlx_whisper", model, data_dir),
        "faster-whisper float32": ("faster_whisper", model, "float32"),
        "faster-whisper int8": ("faster_whisper", model, "int8"),
        "whisper.cpp": ("whisper_cpp", model, data_dir),
    }
    with ExitStack() as processes:
        engines = {
            HTTP: through_http(server),
            IN_PROCESS: processes.enter_context(peer("starling", model, data_dir)),
            SHORT: through_http(server, audio_ctx="auto"),
        }
        for name in PEERS:
            if name not in options.without:
                engines[name] = processes.enter_context(peer(*arguments[name]))
        results = [compare(engines, clip, options.rounds) for clip in files]
    _show(console, [clip.name for clip in files], results, list(engines))


def _show(console: Console, names: list[str], results: list[dict[str, Timed]], engines: list[str]) -> None:
    """Medians in seconds; in brackets ours through HTTP for each second of that engine's; = the same text as ours."""
    table = Table("clip", *engines)
    for name, timed in zip(names, results, strict=True):
        cells = [
            f"{timed[engine].median:.2f} ({timed[HTTP].ratio(timed[engine]):.2f})"
            f"{' =' if timed[engine].text == timed[HTTP].text else ''}"
            for engine in engines
        ]
        table.add_row(name, *cells)
    totals = {
        engine: [sum(of) for of in zip(*(timed[engine].seconds for timed in results), strict=True)]
        for engine in engines
    }
    ours = totals[HTTP]
    table.add_row(
        "together",
        *(
            f"{median(totals[engine]):.2f} ({median(a / b for a, b in zip(ours, totals[engine], strict=True)):.2f})"
            for engine in engines
        ),
    )
    console.print(table)


def _memory(console: Console, server: Server, what: str) -> None:
    (worker,) = server.workers("whisper")
    console.print(f"{what}: {worker.memory_info().rss / (1 << 20):.0f} MiB")


if __name__ == "__main__":
    main()
