"""`python -m benchmarks`: every measurement in turn, on a machine that should be doing nothing else."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.audio import clips
from benchmarks.front_end import resident_mib, seconds_to_listen
from benchmarks.transcription import compare, peer
from service.config import Config
from tests.e2e.server import serving


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="counted runs of each (default: 3)")
    parser.add_argument("--model", default="whisper-base", help="speech model (default: whisper-base)")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    options = parser.parse_args()
    console = Console()
    console.print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        console.print(f"front end listens after {seconds_to_listen(options.data_dir, options.rounds):.2f} s")
        with serving(options.data_dir, "--whisper-model", options.model) as server:
            rest, peak = resident_mib(server)
            console.print(f"front end resident: {rest:.0f} MiB at rest, {peak:.0f} MiB while 150 MB pass through")
            table = Table("clip", "ours, HTTP (s)", "mlx-whisper (s)", "ratio", "text", title=options.model)
            with peer(options.model, options.data_dir) as other:
                for row in compare(server, other, clips(Path(folder)), options.rounds):
                    same = "same" if row.same_text else "differs"
                    table.add_row(row.clip, f"{row.ours:.2f}", f"{row.peer:.2f}", f"{row.ratio:.2f}", same)
            (worker,) = server.workers("whisper")
            console.print(table)
            console.print(f"speech worker resident: {worker.memory_info().rss / (1 << 20):.0f} MiB")


if __name__ == "__main__":
    main()
