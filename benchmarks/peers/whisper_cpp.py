"""whisper.cpp in float16, greedy: `python -m benchmarks.peers.whisper_cpp MODEL DATA_DIR`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import workers.blas
from benchmarks.peers.line import serve


def main() -> None:
    model_name, data_dir = sys.argv[1:]
    workers.blas.prepare(data_dir, threads=1)
    import mlx.core as mx
    from pywhispercpp.model import Model

    from benchmarks.audio import read
    from benchmarks.peers import ggml
    from workers.whisper.load import load

    loaded = load(model_name, data_dir=data_dir, offline=True, report=lambda loading: None, dtype=mx.float32)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.bin"
        ggml.write(loaded.whisper, path)
        model = Model(
            str(path),
            n_threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            print_progress=False,
            print_realtime=False,
            redirect_whispercpp_logs_to=None,
        )

    def transcribe(path: str) -> str:
        segments = model.transcribe(read(path), language="auto")
        return "".join(segment.text if segment.text.startswith(" ") else f" {segment.text}" for segment in segments)

    serve(transcribe)


if __name__ == "__main__":
    main()
