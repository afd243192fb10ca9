"""`python -m benchmarks.words`: how far the words' times are from mlx-whisper's own, over a corpus.

Asks a running kind of service twice for each recording, once with `faithful`, and compares word by word where both
have the same words. Knows manifests; judges nothing.
"""

from __future__ import annotations

import argparse
import json
from difflib import SequenceMatcher
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx

from benchmarks.corpus import MANIFEST
from service.config import Config
from tests.e2e.server import Server, serving


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.words", description=__doc__)
    parser.add_argument("--longest", type=float, default=30.0, help="leave longer recordings out (default: 30 seconds)")
    parser.add_argument("--every", type=int, default=1, help="take each N-th recording only")
    parser.add_argument("--model", default="whisper-base", help="as for `starling serve`")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    options = parser.parse_args()
    rows = [json.loads(line) for line in MANIFEST.read_text().splitlines()]
    chosen = [row for row in rows if row["duration_s"] <= options.longest and row["transcript_status"] != "no speech"]
    apart: list[float] = []
    compared = 0
    with serving(options.data_dir, "--whisper-model", options.model) as server:
        for row in chosen[:: options.every]:
            ours, reference = (_words(server, row, faithful) for faithful in ("false", "true"))
            compared += len(reference)
            apart += _apart(ours, reference)
    print(
        f"{len(chosen[:: options.every])} recordings, {compared} words, {len(apart) // 2} the same: "
        f"starts and ends differ by {median(apart):.3f} s at the median, "
        f"{quantiles(apart, n=20)[-1]:.3f} s at the 95th percentile, {max(apart):.2f} s at most"
    )


def _words(server: Server, row: dict[str, Any], faithful: str) -> list[dict[str, Any]]:
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "word", "faithful": faithful}
    with (MANIFEST.parent / row["file"]).open("rb") as file:
        answer = httpx.post(f"{server.url}/v1/audio/transcriptions", files={"file": file}, data=fields, timeout=3600)
    answer.raise_for_status()
    words: list[dict[str, Any]] = answer.json()["words"]
    return words


def _apart(ours: list[dict[str, Any]], reference: list[dict[str, Any]]) -> list[float]:
    """Seconds between the starts and between the ends of the words that stand in both, in order."""
    said, expected = ([word["word"].strip() for word in words] for words in (ours, reference))
    same = SequenceMatcher(None, said, expected, autojunk=False).get_matching_blocks()
    return [
        abs(ours[block.a + step][edge] - reference[block.b + step][edge])
        for block in same
        for step in range(block.size)
        for edge in ("start", "end")
    ]


if __name__ == "__main__":
    main()
