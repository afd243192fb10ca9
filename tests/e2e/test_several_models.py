"""Two speech models and two language models on real weights: loaded when asked for, unloaded, and loaded again.

The figures of memory that it logs (--log-cli-level=INFO) are those of docs/models.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.chats import NEVER_ENDS, PARIS, body, post
from tests.e2e.server import ROOT, Server, serving, until, unused_port

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]

log = logging.getLogger(__name__)

SAMPLE = ROOT / "service" / "sample.flac"
SMOL = "smollm2-135m-instruct"
COPY = "chatterbox"
MIB = 1 << 20
LEFT_MIB = 10
"""What the front end's own memory may vary by."""


@pytest.fixture(scope="module")
def server(model_data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The copy is the same language model under another name, as a folder of its own."""
    copy = tmp_path_factory.mktemp("models") / COPY
    copy.mkdir()
    speech = ("--whisper-model", "whisper-tiny.en", "--whisper-model", "whisper-base")
    language = ("--llm-model", SMOL, "--llm-model", str(copy), "--model-alias", f"gpt-4o={COPY}")
    patient = ("--stall-seconds", "600", "--start-wait", "300")
    with serving(model_data_dir, *speech, *language, *patient, port=unused_port()) as made:
        # Only now: the first start converts the starter.
        for file in (model_data_dir / "models" / SMOL).iterdir():
            (copy / file.name).symlink_to(file)
        yield made


def transcribed(server: Server, model: str) -> httpx.Response:
    form = {"model": model, "language": "en"}
    with SAMPLE.open("rb") as file:
        return httpx.post(f"{server.url}/v1/audio/transcriptions", data=form, files={"file": file}, timeout=300)


def unload(server: Server, kind: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/admin/{kind}/unload", json=fields, timeout=60)
    assert answer.status_code == 200
    told: dict[str, Any] = answer.json()
    return told


def resident(server: Server) -> list[str]:
    listed = httpx.get(f"{server.url}/v1/models").json()["data"]
    return [each["id"] for each in listed if each["resident"]]


def memory(server: Server) -> int:
    """Resident bytes of the service and all its workers, as the system counts them."""
    return sum(process.memory_info().rss for process in psutil.Process(server.process.pid).children(recursive=True))


def test_a_model_is_loaded_by_the_first_request_that_names_it(server: Server) -> None:
    assert resident(server) == ["whisper-tiny.en", SMOL]
    spoken = transcribed(server, "whisper-base")
    assert (spoken.status_code, spoken.headers["x-starling-model"]) == (200, "whisper-base")
    assert spoken.json()["text"].startswith("Hello from Starling")
    said = post(server, body(model="gpt-4o", max_tokens=20))
    assert (said.json()["model"], said.json()["choices"][0]["message"]["content"]) == (COPY, PARIS)
    assert resident(server) == ["whisper-tiny.en", "whisper-base", SMOL, COPY]
    assert httpx.get(f"{server.url}/ready").status_code == 200


def test_an_unloaded_model_gives_its_memory_back_and_comes_back_with_the_same_answers(server: Server) -> None:
    first = transcribed(server, "whisper-base").json()["text"]
    assert post(server, body(max_tokens=20)).status_code == 200
    for kind, name in (("transcription", "whisper-base"), ("llm", SMOL)):
        before = memory(server)
        told = unload(server, kind, model=name)
        freed = before - memory(server)
        log.info("%s: %d MiB given back, %d as the system counts it", name, told["freed_bytes"] // MIB, freed // MIB)
        assert (told["unloaded"], told["reason"]) == (True, None)
        assert told["freed_bytes"] > 100 * MIB
        assert abs(freed - told["freed_bytes"]) < LEFT_MIB * MIB
        assert all(line["pid"] is None for line in told["workers"])
        assert name not in resident(server)
    assert httpx.get(f"{server.url}/ready").status_code == 200
    assert transcribed(server, "whisper-base").json()["text"] == first
    assert post(server, body(max_tokens=20)).json()["choices"][0]["message"]["content"] == PARIS
    assert {"whisper-base", SMOL} <= set(resident(server))


def test_nothing_is_unloaded_under_an_answer_that_is_under_way(server: Server) -> None:
    endless = body(model=SMOL, max_tokens=2000, logit_bias=NEVER_ENDS, stream=True)
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=endless, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        told = unload(server, "llm", model=SMOL)
        assert (told["unloaded"], told["reason"]) == (False, "1 of its jobs is under way; try again later")
        assert next(line for line in lines if line.startswith("data: "))
    until(lambda: not server.stats("llm")["running"], "the answer is cancelled")
    assert unload(server, "llm", model=SMOL)["unloaded"]


def dictated(server: Server, between: Any = None) -> dict[str, Any]:
    """The sample twice, as two chunks of one session; `between` is called when the first is written."""
    sessions = f"{server.url}/v1/audio/sessions"
    flac, pcm = {"content-type": "audio/flac"}, {"content-type": "audio/pcm;encoding=s16le"}
    wanted = {"model": "whisper-base", "language": "en", "response_format": "verbose_json"}
    id = httpx.post(sessions, json=wanted, timeout=60).json()["id"]
    for number in range(2):
        sent = httpx.post(f"{sessions}/{id}/audio", content=SAMPLE.read_bytes(), headers=flac, timeout=60)
        assert sent.status_code == 200, sent.text
        httpx.post(f"{sessions}/{id}/audio", content=bytes(32_000), headers=pcm, timeout=60).raise_for_status()
        if number == 0 and between is not None:
            until(lambda: httpx.get(f"{sessions}/{id}").json()["text"], "the first utterance is written")
            until(lambda: not server.stats("whisper:whisper-base")["running"], "nothing is being written")
            between(id)
    finished: dict[str, Any] = httpx.post(f"{sessions}/{id}/finish", timeout=120).json()
    httpx.delete(f"{sessions}/{id}")
    return finished


def test_a_dictation_keeps_its_model_and_its_text_while_that_is_unloaded_and_the_server_killed(server: Server) -> None:
    undisturbed = dictated(server)

    def disturb(id: str) -> None:
        assert unload(server, "transcription")["unloaded"]
        restarted(server)
        assert resident(server) == ["whisper-tiny.en", SMOL]
        assert httpx.get(f"{server.url}/v1/audio/sessions/{id}").json()["model"] == "whisper-base"

    told = dictated(server, disturb)
    assert told["text"] == undisturbed["text"]
    assert told["starling"]["model"] == "whisper-base"
    assert "whisper-base" in resident(server)


def restarted(server: Server, *arguments: str) -> None:
    server.command += arguments
    server.kill_and_restart()
    server.wait_ready()


def test_over_the_memory_limit_the_model_that_was_used_longest_ago_goes(server: Server) -> None:
    """There is room for one of the two language models beside the rest."""
    assert post(server, body(model=SMOL, max_tokens=20)).status_code == 200
    sizes = {line["name"]: line["rss_bytes"] for line in httpx.get(f"{server.url}/stats").json()["workers"]}
    limit = sum(sizes[name] for name in ("media-1", "media-2", "live", "whisper")) + 3 * sizes["llm"] // 2
    restarted(server, "--memory-limit", str(limit))
    for model, other in ((COPY, SMOL), (SMOL, COPY)):
        assert transcribed(server, "whisper-tiny.en").status_code == 200
        answer = post(server, body(model=model, max_tokens=20))
        assert answer.json()["choices"][0]["message"]["content"] == PARIS
        until(lambda other=other: other not in resident(server), f"{other} makes room")
        taken = httpx.get(f"{server.url}/stats").json()["memory"]
        log.info("after %s: %d MiB of %d", model, taken["rss_bytes"] // MIB, limit // MIB)
        assert taken["limit"] == limit
        assert taken["rss_bytes"] <= limit
        assert resident(server) == ["whisper-tiny.en", model]


def test_models_that_nobody_asks_for_leave_memory_and_the_next_request_has_them_back(server: Server) -> None:
    restarted(server, "--idle-unload", "2")
    until(lambda: not resident(server), "idle models leave memory")
    assert memory_of_models(server) == 0
    assert httpx.get(f"{server.url}/ready").status_code == 200
    assert transcribed(server, "whisper-1").json()["text"].startswith("Hello from Starling")


def memory_of_models(server: Server) -> int:
    """Resident bytes of the processes that have one."""
    return sum(process.memory_info().rss for kind in ("whisper", "oracle", "llm") for process in server.workers(kind))
