"""mlx-whisper by itself, with the same fast BLAS: a file's name a line in, its text and seconds a line out.

Knows nothing of the service. The model stays loaded between lines, so loading is part of no figure.
"""

from __future__ import annotations

import json
import sys
import time

import workers.blas


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
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        answer = mlx_whisper.transcribe(read(line.strip()), path_or_hf_repo=model_name, fp16=False)
        print(json.dumps({"text": answer["text"].strip(), "seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main()
