"""`python -m workers.oracle --data-dir DIR`: one JSON line saying what MLX would compute with. Loads no model."""

from __future__ import annotations

import argparse
import sys

import msgspec

from workers import blas
from workers.backend import describe


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.oracle", description="What MLX computes with here")
    parser.add_argument("--data-dir", required=True, help="where the prepared BLAS is kept")
    parser.add_argument("--threads", type=int, default=0, help="BLAS threads; 0: one for each core")
    arguments = parser.parse_args()
    library = blas.prepare(arguments.data_dir, arguments.threads)
    found = {"backend": describe(library), "blas_path": library.path, "slow_because": library.reason}
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main()
