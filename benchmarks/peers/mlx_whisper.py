"""mlx-whisper by itself, with the same fast BLAS: `python -m benchmarks.peers.mlx_whisper MODEL DATA_DIR`."""

from __future__ import annotations

import sys

import workers.blas
from benchmarks.peers.line import serve


def main() -> None:
    model_name, data_dir = sys.argv[1:]
    workers.blas.prepare(data_dir, threads=0)
    # MLX binds its BLAS at import, so whatever imports it comes after.
    import mlx.core as mx
    import mlx_whisper
    from mlx_whisper.transcribe import ModelHolder

    from benchmarks.audio import read
    from workers.whisper.load import load

    loaded = load(model_name, data_dir=data_dir, offline=True, report=lambda loading: None, dtype=mx.float32)
    ModelHolder.model, ModelHolder.model_path = loaded.whisper, model_name
    serve(lambda path: str(mlx_whisper.transcribe(read(path), path_or_hf_repo=model_name, fp16=False)["text"]))


if __name__ == "__main__":
    main()
