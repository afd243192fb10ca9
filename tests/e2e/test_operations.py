"""Seeing inside a real service: every series moves, and a request's id follows it through the workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.fuzzing import fuzz
from tests.e2e.server import ROOT, Server, serving, until
from tests.service.test_metrics import samples
from workers.priority import NICE

pytestmark = [pytest.mark.model, pytest.mark.port]

SERIES = (
    "starling_requests_total",
    "starling_request_seconds_count",
    "starling_first_byte_seconds_count",
    "starling_queue_wait_seconds_count",
    "starling_first_delta_seconds_count",
    "starling_realtime_factor_count",
    "starling_audio_seconds_total",
    "starling_prompt_tokens_total",
    "starling_cached_tokens_total",
    "starling_generated_tokens_total",
    "starling_forced_tokens_total",
    "starling_guessed_tokens_total",
    "starling_prompt_cache_bytes",
    "starling_worker_restarts_total",
    "starling_worker_rss_bytes",
    "starling_worker_up",
    "starling_sessions",
    "starling_session_bytes",
    "starling_spooled_bytes_total",
)


@pytest.fixture(scope="module")
def seen(model_data_dir: Path) -> Iterator[Server]:
    models = ("--whisper-model", "whisper-tiny.en", "--llm-model", "smollm2-135m-instruct")
    options = ("--log-format", "json", "--allow-trace", "--stall-seconds", "600", "--start-wait", "300")
    with serving(model_data_dir, *models, *options) as server:
        yield server


def test_workers_come_after_the_front_end_and_share_its_session(seen: Server) -> None:
    front, workers = psutil.Process(seen.process.pid), seen.workers()
    assert len(workers) >= 4
    assert {worker.nice() for worker in workers} == {min(front.nice() + NICE, 19)}
    assert {os.getsid(worker.pid) for worker in workers} == {os.getsid(front.pid)}
    assert [os.getpgid(worker.pid) for worker in workers] == [worker.pid for worker in workers]


def scraped(server: Server) -> dict[str, float]:
    """The sum of each series over its labels."""
    answer = httpx.get(f"{server.url}/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    sums: dict[str, float] = {}
    for name, value in samples(answer.text).items():
        sums[name.partition("{")[0]] = sums.get(name.partition("{")[0], 0.0) + value
    return sums


def asked(server: Server, path: str, body: dict[str, Any], **headers: str) -> Any:
    answer = httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=300)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def transcribed(server: Server) -> str:
    with (ROOT / "service" / "sample.flac").open("rb") as file:
        answer = httpx.post(f"{server.url}/v1/audio/transcriptions", files={"file": file}, timeout=300)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["text"]
    return text


def test_every_series_moves_after_real_requests(seen: Server) -> None:
    before = scraped(seen)
    assert "Starling" in transcribed(seen)
    said = [{"role": "user", "content": "Answer yes or no: is the sky blue?"}]
    shaped = {"messages": said, "guided_choice": ["yes, it certainly is", "no, it certainly is not"], "max_tokens": 20}
    assert asked(seen, "/v1/chat/completions", shaped)["starling"]["forced_tokens"] > 0
    assert asked(seen, "/v1/chat/completions", shaped)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    repeated = {"prompt": "one two three four five six " * 8, "max_tokens": 48, "temperature": 0}
    assert asked(seen, "/v1/completions", repeated)["starling"]["guessed_tokens"] > 0
    asked(seen, "/v1/audio/sessions", {})
    (worker,) = seen.workers("live")
    restarts = int(seen.stats("live")["restarts"])
    worker.kill()
    until(lambda: seen.stats("live")["restarts"] == restarts + 1, "the live worker's end is noticed")
    until(lambda: seen.stats("live")["state"] == "ready", "a new live worker")
    after = scraped(seen)
    # A worker's memory and whether it is up were there before; they are what `/stats` says.
    still = [name for name in SERIES if after[name] == before.get(name, 0.0)]
    assert set(still) <= {"starling_worker_up"} and after["starling_worker_up"] == 5
    (cache,) = httpx.get(f"{seen.url}/stats").json()["caches"]
    assert cache["pool"] == "llm" and 0 < cache["bytes"] == after["starling_prompt_cache_bytes"] <= cache["limit_bytes"]


def about(server: Server, request: str) -> list[dict[str, Any]]:
    """The whole lines of its log that name the request."""
    lines = [json.loads(line) for line in server.log.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in lines if line.get("request_id") == request]


def test_a_request_s_id_is_on_its_lines_in_the_service_and_in_the_worker(seen: Server) -> None:
    secret = "zebrafish"
    body = {"messages": [{"role": "user", "content": f"Say {secret}."}], "max_tokens": 5}
    asked(seen, "/v1/chat/completions", body, **{"x-request-id": "try 7] [a%", "x-starling-trace": "1"})
    until(lambda: " 200 " in "".join(each["message"] for each in about(seen, "try 7] [a%")), "it is logged")
    ours = about(seen, "try 7] [a%")
    (http,) = [line for line in ours if line["logger"] == "starling.http"]
    assert (http["method"], http["path"], http["status"]) == ("POST", "/v1/chat/completions", 200)
    (trace,) = [line for line in ours if line["logger"] == "starling.llm"]
    assert trace["message"].startswith("workers.llm.trace: trace: prompt ")
    assert secret not in seen.log and "Hello from Starling" not in seen.log


@pytest.mark.timeout(900)
def test_what_the_document_promises_holds_for_whatever_is_asked(seen: Server) -> None:
    found = fuzz(seen.url, seconds=40, seed=1, rounds=2)
    assert found.failures == {}
    assert found.inputs > 50


def test_processes_say_what_they_are(seen: Server) -> None:
    # A model that was unloaded has no process until it is asked for something.
    transcribed(seen)
    asked(seen, "/v1/completions", {"prompt": "Hello", "max_tokens": 1})
    titles = [" ".join(psutil.Process(seen.process.pid).cmdline()).strip()]
    titles += [" ".join(seen.workers(name)[0].cmdline()).strip() for name in ("whisper", "llm", "media")]
    assert titles == [
        f"starling serve on {seen.url}",
        "starling: whisper whisper-tiny.en",
        "starling: llm smollm2-135m-instruct",
        "starling: media",
    ]
