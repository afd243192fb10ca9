"""mlx_lm.server with the same float32 weights and fast BLAS: `python -m benchmarks.peers.mlx_lm_server MODEL DATA_DIR
PORT`.

Its model classes, batches and prompt cache are untouched. On a CPU its own way with a quantized model, staying with
the packed weights, is five times slower.
"""

from __future__ import annotations

import sys
from typing import Any

import workers.blas


def main() -> None:
    model, data_dir, port = sys.argv[1:]
    workers.blas.prepare(data_dir, threads=0)
    # MLX binds its BLAS at import, so whatever imports it comes after.
    import mlx.core as mx
    from mlx_lm import server as untyped

    from workers.llm.cpu.plain import to_float32
    from workers.source import find

    server: Any = untyped
    stock = server.load

    def load(*arguments: Any, **options: Any) -> Any:
        loaded = stock(*arguments, **options)
        if mx.default_device() == mx.Device(mx.cpu):
            to_float32(loaded[0])
        mx.eval(loaded[0].parameters())
        return loaded

    server.load = load
    folder = find(model, "llm", data_dir=data_dir, offline=True, report=lambda _: None)
    sys.argv = ["mlx_lm.server", "--model", str(folder), "--port", port, "--log-level", "WARNING"]
    server.main()


if __name__ == "__main__":
    main()
