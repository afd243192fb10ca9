"""What holds for every route: the map, methods, ids, errors; and the start and stop of the real parts."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ModelNotConfigured
from protocol.events import Loading
from service.app import create
from service.config import Config
from tests.asgi import FORM, ask, multipart, opened
from tests.scripted import WAV, Scripted


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/ready", 200),
        ("GET", "/stats", 200),
        ("GET", "/v1", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/whisper-base", 200),
        ("GET", "/v1/models/whisper-1", 200),
        ("HEAD", "/health", 200),
        ("HEAD", "/v1/models", 200),
        ("OPTIONS", "/health", 204),
        ("OPTIONS", "/v1/audio/transcriptions", 204),
    ],
)
def test_the_routes_are_there(service: Scripted, method: str, path: str, status: int) -> None:
    assert ask(service.app, method, path).status == status


@pytest.mark.parametrize(
    "path",
    ["/", "/nothing", "/health/", "/v1/", "/v1/audio", "/v1/realtime", "/v1/files", "/%2e%2e/etc/passwd", "/ü%00"],
)
def test_what_is_nowhere_is_not_found(service: Scripted, path: str) -> None:
    assert ask(service.app, "GET", path).error == (404, "not_found", None)


@pytest.mark.parametrize("name", ["nothing", "mlx-community/whisper-nothing", "a%2Fb", "../..", "%00", ""])
def test_a_model_that_is_nowhere_is_not_found(service: Scripted, name: str) -> None:
    assert ask(service.app, "GET", f"/v1/models/{name}").error == (404, "model_not_found", None)


@pytest.mark.parametrize(("path", "meant"), [("/v1/models/", "/v1/models"), ("/v1/models/x/", "/v1/models/x")])
def test_a_slash_behind_a_model_s_name_is_pointed_out(service: Scripted, path: str, meant: str) -> None:
    assert f"; {meant} is probably meant" in ask(service.app, "GET", path).json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/audio/transcriptions", "OPTIONS, POST"),
        ("HEAD", "/v1/audio/translations", "OPTIONS, POST"),
        ("POST", "/health", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v1/models/x", "GET, HEAD, OPTIONS"),
        ("BREW", "/v1", "GET, HEAD, OPTIONS"),
    ],
)
def test_another_method_is_refused_with_those_there_are(service: Scripted, method: str, path: str, allow: str) -> None:
    reply = ask(service.app, method, path)
    assert reply.error == (405, "method_not_allowed", None)
    assert reply.headers["allow"] == allow
    assert ask(service.app, "OPTIONS", path).headers["allow"] == allow


def test_the_map_lists_every_route(service: Scripted) -> None:
    listed = [(each["method"], each["path"]) for each in ask(service.app, "GET", "/v1").json["routes"]]
    assert listed == [
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/v1/audio/translations"),
        ("POST", "/v1/audio/sessions"),
        ("GET", "/v1/audio/sessions"),
        ("GET", "/v1/audio/sessions/{id}"),
        ("DELETE", "/v1/audio/sessions/{id}"),
        ("POST", "/v1/audio/sessions/{id}/audio"),
        ("GET", "/v1/audio/sessions/{id}/events"),
        ("POST", "/v1/audio/sessions/{id}/finish"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/messages/count_tokens"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/responses/input_tokens"),
        ("GET", "/v1/responses/{id}"),
        ("DELETE", "/v1/responses/{id}"),
        ("GET", "/v1/responses/{id}/input_items"),
        ("GET", "/v1/adapters"),
        ("POST", "/v1/adapters"),
        ("DELETE", "/v1/adapters/{id}"),
        ("POST", "/v1/embeddings"),
        ("GET", "/v1"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/{id}"),
        ("POST", "/admin/transcription/unload"),
        ("POST", "/admin/llm/unload"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/health"),
        ("GET", "/ready"),
        ("GET", "/metrics"),
        ("GET", "/stats"),
    ]


@pytest.mark.parametrize("given", ["abc-123", "x", "a b", "~" * 128])
def test_a_clients_own_id_comes_back(service: Scripted, given: str) -> None:
    assert ask(service.app, "GET", "/health", {"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", [None, "", "x" * 129, "ü", "a\tb", "a\x7f"])
def test_an_id_that_is_none_is_replaced(service: Scripted, given: str | None) -> None:
    headers = {} if given is None else {"x-request-id": given}
    first, second = (ask(service.app, "GET", "/nothing", headers).headers["x-request-id"] for _ in range(2))
    assert first.startswith("req_") and len(first) == 28
    assert first != second


def test_the_log_has_a_line_for_each_request(service: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "starling.http")
    ask(service.app, "GET", "/no%0Awhere", {"x-request-id": "r-1"})
    (line,) = caplog.messages
    assert line.startswith("GET '/no\\nwhere' 404 ") and line.endswith(" r-1")


def test_ready_says_what_is_missing(service: Scripted) -> None:
    service.whisper.state = "starting"
    service.whisper.loading = Loading("fetching whisper-base", 10, 100)
    reply = ask(service.app, "GET", "/ready")
    assert reply.error == (503, "worker_starting", None)
    assert reply.json["status"] == "starting"
    assert reply.json["workers"] == [
        {"name": "media", "ready": True, "reason": None, "loading": None},
        {"name": "live", "ready": True, "reason": None, "loading": None},
        {
            "name": "whisper",
            "ready": False,
            "reason": "the whisper worker is starting: fetching whisper-base",
            "loading": {"type": "loading", "message": "fetching whisper-base", "done": 10, "total": 100},
        },
    ]
    assert "x-should-retry" not in reply.headers


def test_ready_tells_the_worst(service: Scripted) -> None:
    service.media.state = "starting"
    service.whisper.failure = ModelNotConfigured("run `starling get x`")
    reply = ask(service.app, "GET", "/ready")
    assert reply.error == (503, "model_not_configured", None)
    assert (reply.json["status"], reply.json["error"]["message"]) == ("unavailable", "run `starling get x`")
    assert reply.headers["x-should-retry"] == "false"
    assert [line["ready"] for line in reply.json["workers"]] == [False, True, False]


def test_ready_waits_for_no_worker_that_starts_on_demand(service: Scripted) -> None:
    service.oracle.failure = ModelNotConfigured("run `starling get x`")
    reply = ask(service.app, "GET", "/ready")
    assert (reply.status, [line["name"] for line in reply.json["workers"]]) == (200, ["media", "live", "whisper"])


def test_stats_tell_what_the_house_does(service: Scripted) -> None:
    body = ask(service.app, "GET", "/stats").json
    states = {line["name"]: line["state"] for line in body["workers"]}
    assert states == {"media": "ready", "live": "ready", "whisper": "ready", "oracle": "idle"}
    assert set(body["workers"][0]) == {"name", "pid", "state", "rss_bytes", "restarts", "queued", "running"}
    assert body["queue"] == {"limit": 64, "queued": 0, "running": 0}
    assert (body["backend"]["name"], body["blas"], body["model"]["id"]) == ("cpu", "OpenBLAS 0.3", "whisper-base")
    assert body["spool"] == {"files": 0, "bytes": 0}
    assert body["sessions"] == {"open": 0, "finishing": 0, "finished": 0, "failed": 0, "limit": 64, "bytes": 0}


def test_a_refused_body_is_read_on_so_that_the_refusal_is_seen(service: Scripted) -> None:
    async def main() -> None:
        async with opened(service.app, "POST", "/nothing", FORM) as exchange:
            await exchange.answered.wait()
            assert exchange.sent[0]["status"] == 404
            for _ in range(10):
                exchange.send(b"x" * 1000)
            assert not exchange.complete
            exchange.send(b"", more=False)
        assert exchange.complete

    asyncio.run(main())


def test_lifespan_does_not_wait_for_the_workers(tmp_path: Path) -> None:
    """The real pools and spool; their processes cannot load such a model, and nobody waits for them to say so."""
    config = Config(
        data_dir=str(tmp_path), whisper_model=(str(tmp_path / "nothing"),), llm_model=(), grace=0.1, media_workers=1
    )

    async def main() -> None:
        app = create(config)
        async with asyncio.timeout(30), app.router.lifespan_context(app):
            async with opened(app, "GET", "/health") as exchange:
                exchange.send(b"", more=False)
            assert exchange.reply().json == {"status": "ok"}
            async with opened(app, "GET", "/stats") as exchange:
                exchange.send(b"", more=False)
            assert [line["name"] for line in exchange.reply().json["workers"]] == [
                "media",
                "live",
                "whisper",
                "oracle",
            ]
        assert [file.name for file in (tmp_path / "spool").iterdir()] == [".lock"]

    asyncio.run(main())


def test_the_front_end_needs_neither_numpy_nor_mlx() -> None:
    code = (
        "import sys, service.app, service.api, hypercorn.asyncio\n"
        "print([name for name in ('numpy', 'mlx', 'torch', 'workers', 'huggingface_hub') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_upload_of_megabytes_is_no_matter_of_memory(service: Scripted) -> None:
    """Each piece is on disk before the next comes: what the front end holds does not grow with the file."""
    import tracemalloc

    async def main() -> int:
        body = multipart([("file", b"", "a.wav")], end=False)
        async with opened(service.app, "POST", "/v1/audio/transcriptions", FORM) as exchange:
            exchange.send(body[:-2])
            for _ in range(300):
                exchange.send(WAV * 4096)
                await asyncio.sleep(0)
            exchange.send(b"\r\n--XbX--\r\n", more=False)
        assert exchange.reply().status == 200
        return tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    try:
        peak = asyncio.run(main())
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20
