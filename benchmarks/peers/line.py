"""The peers' side of the conversation: JSON lines. Knows no engine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable


def serve(transcribe: Callable[[str], str]) -> None:
    """Say that the model is loaded, then answer each path with `{"text", "seconds"}` until the input ends."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        text = transcribe(line.rstrip("\n"))
        print(json.dumps({"text": text.strip(), "seconds": time.perf_counter() - started}), flush=True)
