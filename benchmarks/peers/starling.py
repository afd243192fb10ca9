"""Our own media decoder and engine without HTTP and pipes: `python -m benchmarks.peers.starling MODEL DATA_DIR`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.peers.line import serve
from protocol.events import Event, Failed, Segment
from protocol.jobs import Pcm, Transcribe
from protocol.settings import MediaSettings, WhisperSettings


def main() -> None:
    model_name, data_dir = sys.argv[1:]
    from workers.media.decode import decode_steps
    from workers.whisper.engine import build

    engine = build(WhisperSettings(model_name, data_dir, offline=True), lambda loading: None)

    def decode(source: str, target: Path) -> Pcm:
        steps = decode_steps(source, str(target), MediaSettings())
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return Pcm(str(target), 0, end.value.samples)

    def transcribe(path: str) -> str:
        said: list[Event] = []
        with tempfile.TemporaryDirectory() as name:
            engine.admit(Transcribe(decode(path, Path(name) / "pcm")), said.append)
            while engine.busy:
                engine.step()
        if isinstance(said[-1], Failed):
            raise RuntimeError(said[-1].message)
        return "".join(event.text for event in said if isinstance(event, Segment))

    serve(transcribe)


if __name__ == "__main__":
    main()
