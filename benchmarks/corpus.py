"""`python -m benchmarks.corpus`: every recording of a corpus through a running kind of service, for error rates.

Writes one JSON object a line, {"file", "id", "text"}, which the corpus's score.py reads; prints how many texts are
those of another such file. Knows manifests; scores nothing itself.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from service.config import Config
from tests.e2e.server import SHARED, serving

MANIFEST = SHARED / "speech" / "manifest.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__)
    parser.add_argument("output", type=Path, help="the file of texts to write")
    parser.add_argument("--against", type=Path, help="another such file, to compare with")
    parser.add_argument("--field", action="append", default=[], metavar="NAME=VALUE", help="sent with each recording")
    parser.add_argument("--at-once", type=int, default=8, help="requests at a time (default: 8)")
    parser.add_argument("--model", default="whisper-base", help="as for `starling serve`")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    options = parser.parse_args()
    rows = [json.loads(line) for line in MANIFEST.read_text().splitlines()]
    fields = dict(field.split("=", 1) for field in options.field)
    with (
        serving(options.data_dir, "--whisper-model", options.model) as server,
        ThreadPoolExecutor(options.at_once) as pool,
    ):

        def transcribe(row: dict[str, Any]) -> dict[str, str]:
            with (MANIFEST.parent / row["file"]).open("rb") as file:
                answer = httpx.post(
                    f"{server.url}/v1/audio/transcriptions", files={"file": file}, data=fields, timeout=3600
                )
            answer.raise_for_status()
            return {"file": row["file"], "id": row["id"], "text": answer.json()["text"]}

        started = time.perf_counter()
        said = list(pool.map(transcribe, rows))
        seconds = time.perf_counter() - started
    options.output.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in said))
    audio = sum(row["duration_s"] for row in rows)
    print(f"{len(said)} recordings, {audio:.0f} s of audio in {seconds:.0f} s ({audio / seconds:.1f} times real time)")
    if options.against:
        _compare(rows, said, options.against)


def _compare(rows: list[dict[str, Any]], said: list[dict[str, str]], path: Path) -> None:
    other = {line["id"]: line["text"] for line in map(json.loads, path.read_text().splitlines())}
    spoken = {row["id"] for row in rows if row["transcript_status"] != "no speech"} & other.keys()
    differing = [line for line in said if line["id"] in spoken and line["text"].strip() != other[line["id"]].strip()]
    print(f"{len(spoken) - len(differing)} of {len(spoken)} recordings with speech have the same text")
    for line in differing:
        print(f"  {line['id']}\n    this  {line['text']}\n    other {other[line['id']].strip()}")


if __name__ == "__main__":
    main()
