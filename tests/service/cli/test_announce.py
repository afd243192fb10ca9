"""What `serve` prints while it loads."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from protocol.errors import ModelNotConfigured
from protocol.events import Backend, Loading, Ready
from service.cli.announce import announce, backend, curl, progress
from tests.fakes import FakeWorker
from tests.scripted import MULTILINGUAL

URL = "http://127.0.0.1:8080"
FAST = Backend("cpu", "0.32.4", "OpenBLAS 0.3.34 (system)", compiler="/usr/bin/g++")


def test_readiness_ends_with_a_command_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    workers = [
        FakeWorker("media", {}, ready=Ready(2)),
        FakeWorker("whisper", {}, ready=Ready(1, FAST, MULTILINGUAL)),
    ]
    asyncio.run(announce(workers, curl(URL)))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "ready: whisper-base (float32) on cpu (MLX 0.32.4, OpenBLAS 0.3.34 (system))"
    assert printed[2].endswith(" http://127.0.0.1:8080/v1/audio/transcriptions")


def test_the_command_names_a_recording_that_is_there() -> None:
    command, option, file, url = shlex.split(curl(URL))
    assert (command, option, url) == ("curl", "-F", f"{URL}/v1/audio/transcriptions")
    assert Path(file.removeprefix("file=@")).read_bytes()[:4] == b"fLaC"


def test_a_model_that_cannot_be_had_is_the_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    worker = FakeWorker("whisper", {}, failure=ModelNotConfigured("x/y is not here: run `starling get x/y`"))
    asyncio.run(announce([worker], curl(URL)))
    printed = capsys.readouterr().out
    assert printed.startswith("not ready: x/y is not here: run `starling get x/y`\n")
    assert "curl" not in printed


def test_speech_is_announced_where_the_language_model_cannot_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    llm = FakeWorker("llm", {}, failure=ModelNotConfigured("x/y is not here"))
    asyncio.run(announce([llm, FakeWorker("media", {}, ready=Ready(2))], curl(URL)))
    printed = capsys.readouterr().out
    assert printed.startswith("not ready: x/y is not here\nThe service answers, but not in chats;")
    assert "curl" in printed


def test_progress_is_told_while_it_loads(capsys: pytest.CaptureFixture[str]) -> None:
    worker = FakeWorker("whisper", {}, loading=Loading("loading whisper-base"))

    async def watch() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(announce([worker], curl(URL)), 0.25)

    asyncio.run(watch())
    assert capsys.readouterr().out == "loading whisper-base …\n"


def test_progress_goes_in_steps() -> None:
    assert progress(Loading("downloading x/y", 38_000_000, 145_000_000)) == "downloading x/y … 20% of 145 MB"
    assert progress(Loading("importing")) == "importing …"


def test_a_slow_backend_is_loud() -> None:
    slow = Backend("cpu", "0.32.4", "reference BLAS", slow=True, compiler="g++")
    assert "WARNING: MLX computes with the reference BLAS, about fifty times slower" in backend(slow)
    assert "WARNING" not in backend(FAST)


def test_a_missing_compiler_is_mentioned_where_it_matters() -> None:
    assert "no C++ compiler" in backend(Backend("cpu", "0.32.4", "OpenBLAS"))
    assert backend(Backend("metal", "0.32.4")) == "metal (MLX 0.32.4)"


def test_speech_is_announced_where_the_model_for_embeddings_cannot_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    broken = FakeWorker("embedding", {}, failure=ModelNotConfigured("x/y is not here"))
    asyncio.run(announce([broken, FakeWorker("media", {}, ready=Ready(2))], curl(URL)))
    printed = capsys.readouterr().out
    assert printed.startswith("not ready: x/y is not here\nThe service answers, but makes no embeddings;")
    assert "curl" in printed
