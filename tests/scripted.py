"""A service whose workers are scripts, and what they say unless told otherwise. Knows no test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from protocol.events import Backend, Decoded, Model, Progress, Ready, Segment, Timings, Transcribed
from protocol.jobs import Decode, Transcribe
from service.app import build, furnish
from service.config import Config
from service.dictation.store import Store
from service.house import Speech, Workers
from service.languages import NAMES
from service.spool import Spool
from service.worker import Worker
from tests.asgi import FORM, Reply, ask, multipart
from tests.fakes import FakeWorker

WAV = b"RIFF....WAVEfmt "
MULTILINGUAL = Model("whisper-base", "whisper", tuple(NAMES)[:99], True, 72_593_920, "float32")
SEGMENTS = (
    Segment(0.0, 2.5, " And so my fellow Americans", (50364, 400, 50489), 0, 0.0, -0.2, 1.3, 0.01),
    Segment(2.5, 4.0, " ask not.", (50489, 1029, 50564), 0, 0.0, -0.2, 1.3, 0.01),
)
HEARD = Transcribed("en", 0.98, Timings(mel=1.0, encode=2.0, decode=3.0, align=0.0))


@dataclass
class Scripted:
    """The application, the workers behind it, and where its uploads go."""

    app: Starlette
    media: FakeWorker
    whisper: FakeWorker
    oracle: FakeWorker
    llm: FakeWorker | None
    spool: Spool

    def post(self, *parts: Any, path: str = "/v1/audio/transcriptions", file: bytes | None = WAV) -> Reply:
        """The answer to a form of these (name, value) parts and the file."""
        files = [] if file is None else [("file", file, "a.wav")]
        return ask(self.app, "POST", path, FORM, multipart([*files, *parts]))

    @property
    def decoding(self) -> Any:
        """What the speech worker was told."""
        (job,) = self.whisper.jobs
        assert isinstance(job, Transcribe)
        return job.decoding

    @property
    def left(self) -> int:
        return self.spool.usage().files


@contextmanager
def scripted(
    folder: Path,
    model: Model = MULTILINGUAL,
    script: Any = None,
    *,
    llm: FakeWorker | None = None,
    embedding: FakeWorker | None = None,
    **settings: Any,
) -> Iterator[Scripted]:
    """Without `llm` no language model is configured, unless `llm_model` says otherwise; so with `embedding`."""
    settings.setdefault("llm_model", ("smol",) if llm else ())
    settings.setdefault("embedding_model", ("mini",) if embedding else ())
    config = Config(data_dir=str(folder), whisper_model=(model.id,), **settings)
    ready = Ready(1, Backend("cpu", "0.32", "OpenBLAS 0.3"), model)
    heard = [Progress(0.0, 4.5), *SEGMENTS, HEARD] if script is None else script
    media = FakeWorker(
        "media",
        {Decode: [Progress(1, 2), Decoded(samples=72_000, decoder="soundfile", container="WAV", elapsed_ms=7.0)]},
        ready=Ready(2),
    )
    whisper = FakeWorker("whisper", {Transcribe: heard}, ready=ready)
    live = FakeWorker("live", {}, ready=Ready(2))
    oracle = FakeWorker("oracle", {Transcribe: heard})
    oracle.state = "idle"
    with Spool(folder) as spool, Store(folder) as store:
        language: dict[str, Worker] = dict.fromkeys(config.llm_model, llm or FakeWorker("llm", {}))
        embedders: dict[str, Worker] = dict.fromkeys(config.embedding_model, embedding or FakeWorker("embedding", {}))
        workers = Workers(media, live, {model.id: Speech(whisper, oracle)}, language, embedders)
        app = build(furnish(config, workers, spool, store))
        yield Scripted(app, media, whisper, oracle, llm, spool)
        assert spool.usage().files == 0, "a file was left in the spool"
