"""`python -m benchmarks.hints`: what hint terms do for the words that they name, and whether silence speaks them.

Recordings whose manifest row has `hints` are transcribed without terms, with their own, and with those of all rows;
recordings without speech without terms and with those of all rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jiwer
from rich.console import Console
from rich.table import Table
from whisper_normalizer.english import EnglishTextNormalizer

from benchmarks.corpus import MANIFEST
from service.config import Config
from tests.e2e.server import Server, serving

Row = Mapping[str, Any]
Terms = Callable[[Row], Sequence[str]]

WAYS = ("none", "own", "all")


@dataclass(frozen=True)
class Score:
    """Over all recordings of one way. `spoken`: hint words in the transcripts; `heard`: those of them in the texts."""

    spoken: int
    heard: int
    invented: int
    """Hint words, the row's or another's, in the texts and not in the transcripts."""
    word_error_rate: float
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hints", description=__doc__)
    parser.add_argument("--way", action="append", choices=WAYS, help="only this one (repeat for more)")
    parser.add_argument("--field", action="append", default=[], metavar="NAME=VALUE", help="sent with each recording")
    parser.add_argument("--at-once", type=int, default=8, help="requests at a time (default: 8)")
    parser.add_argument("--model", default="whisper-base", help="as for `starling serve`")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    parser.add_argument("--silence-only", action="store_true", help="leave the recordings with speech out")
    options = parser.parse_args()
    rows = [json.loads(line) for line in MANIFEST.read_text().splitlines()]
    hinted = [row for row in rows if row.get("hints")]
    silent = [row for row in rows if row["transcript_status"] == "no speech"]
    every = tuple(dict.fromkeys(hint for row in hinted for hint in row["hints"]))
    terms: dict[str, Terms] = {"none": lambda row: (), "own": lambda row: row["hints"], "all": lambda row: every}
    ways = options.way or WAYS
    fields = dict(field.split("=", 1) for field in options.field)
    console = Console()
    with (
        serving(options.data_dir, "--whisper-model", options.model) as server,
        ThreadPoolExecutor(options.at_once) as pool,
    ):

        def texts(of: list[Row], way: str) -> list[str]:
            return list(pool.map(lambda row: transcribe(server, row, terms[way](row), fields), of))

        if not options.silence_only:
            scores = {}
            for way in ways:
                began = time.perf_counter()
                said = texts(hinted, way)
                scores[way] = score(hinted, said, every, time.perf_counter() - began)
            console.print(table(scores))
        for way in ways:
            if way != "own":
                for row, text in zip(silent, texts(silent, way), strict=True):
                    console.print(f"no speech, terms {way:4} {row['id']:18} {text!r}")


def transcribe(server: Server, row: Row, terms: Sequence[str], fields: Mapping[str, str]) -> str:
    with (MANIFEST.parent / row["file"]).open("rb") as file:
        answer = httpx.post(
            f"{server.url}/v1/audio/transcriptions",
            files={"file": file},
            data={**fields, "vocabulary[]": list(terms)},
            timeout=3600,
        )
    answer.raise_for_status()
    text: str = answer.json()["text"]
    return text


def score(rows: Sequence[Row], texts: Sequence[str], every: Sequence[str], seconds: float) -> Score:
    normal = EnglishTextNormalizer()
    references = [normal(row["transcript"]) for row in rows]
    heard = [normal(text) for text in texts]
    names = set(map(normal, every))
    spoken = found = invented = 0
    for row, reference, text in zip(rows, references, heard, strict=True):
        meant, said = Counter(reference.split()), Counter(text.split())
        for hint in set(map(normal, row["hints"])):
            spoken += meant[hint]
            found += min(meant[hint], said[hint])
        invented += sum((said - meant)[name] for name in names)
    rate = jiwer.process_words(references, heard).wer
    return Score(spoken, found, invented, rate, seconds)


def table(scores: Mapping[str, Score]) -> Table:
    shown = Table("terms", "hint words heard", "hint words not heard", "invented", "word error rate", "seconds")
    for way, got in scores.items():
        shown.add_row(
            way,
            f"{got.heard} of {got.spoken}",
            f"{1 - got.heard / got.spoken:.1%}",
            str(got.invented),
            f"{got.word_error_rate:.2%}",
            f"{got.seconds:.0f}",
        )
    return shown


if __name__ == "__main__":
    main()
