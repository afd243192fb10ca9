"""A recording in, its text out: a real service, real weights, a real port, the official client."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.server import ROOT, SHARED, Server, until

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]

ASK_NOT = "ask not what your country can do for you"
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
DINNER = "He hoped there would be stew for dinner, turnips and carrots and bruised potatoes"
CUT = {"fmt-wav48k-stereo-s24.wav": 32, "fmt-wav-f32.wav": 46, "fmt-flac-44k-stereo.flac": 81}
"""Those that hold the first seconds only, and how many letters of the sentence no cut has touched."""
CONTAINERS = sorted(path.name for path in (SHARED / "speech" / "audio").glob("fmt-*"))


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def curl(url: str, *arguments: str) -> str:
    command = ["curl", "-sS", "--fail-with-body", *arguments, url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_curl_gets_the_text_of_the_packaged_sample(base: Server) -> None:
    sample = ROOT / "service" / "sample.flac"
    answer = curl(f"{base.url}/v1/audio/transcriptions", "-F", f"file=@{sample}")
    assert "starling" in json.loads(answer)["text"].lower()


@pytest.mark.shared
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
@pytest.mark.parametrize("response_format", FORMATS)
def test_curl_gets_every_format(tiny: Server, recordings: Path, response_format: str) -> None:
    """REQ-10"""
    answer = curl(
        f"{tiny.url}/v1/audio/transcriptions",
        "-F",
        f"file=@{recordings / 'jfk.mp3'}",
        "-F",
        f"response_format={response_format}",
    )
    assert ASK_NOT in " ".join(re.sub(r"[\d:.,]+ --> [\d:.,]+|^\d+$", "", answer, flags=re.M).split())
    match response_format:
        case "json":
            assert json.loads(answer)["usage"] == {"type": "duration", "seconds": 11}
        case "verbose_json":
            body = json.loads(answer)
            assert (body["task"], body["language"], round(body["duration"])) == ("transcribe", "english", 11)
        case "srt":
            assert answer.startswith("1\n00:00:00,")
        case "vtt":
            assert answer.startswith("WEBVTT\n\n00:00")
        case "text":
            assert answer.count("\n") == 1 and answer.endswith("\n")


@pytest.mark.shared
def test_the_openai_client_gets_the_text_from_the_default_model(base: Server, recordings: Path) -> None:
    with (recordings / "jfk.mp3").open("rb") as file, client_of(base) as client:
        answer = client.audio.transcriptions.create(file=file, model="whisper-1")
    assert ASK_NOT in answer.text


@pytest.mark.shared
def test_the_openai_client_gets_every_format(tiny: Server, recordings: Path) -> None:
    """REQ-10"""

    def ask(response_format: str) -> object:
        with (recordings / "jfk.mp3").open("rb") as file, client_of(tiny) as client:
            return client.audio.transcriptions.create(
                file=file,
                model="whisper-1",
                response_format=response_format,  # type: ignore[call-overload]
            )

    plain, text, verbose = ask("json"), ask("text"), ask("verbose_json")
    assert isinstance(plain, openai.types.audio.Transcription)
    assert isinstance(text, str)
    assert isinstance(verbose, openai.types.audio.TranscriptionVerbose)
    assert ASK_NOT in plain.text
    assert text == plain.text + "\n"
    assert verbose.text == plain.text
    assert verbose.segments is not None
    assert "".join(segment.text for segment in verbose.segments).strip() == plain.text
    assert str(ask("srt")).startswith("1\n00:00:00,")
    assert str(ask("vtt")).startswith("WEBVTT\n")


@pytest.mark.shared
def test_a_translation_is_in_english(base: Server, recordings: Path) -> None:
    with (recordings / "fleurs-de-000.ogg").open("rb") as file, pytest.deprecated_call(), client_of(base) as client:
        answer = client.audio.translations.create(file=file, model="whisper-1", response_format="verbose_json")
    assert answer.language == "english"
    assert " the " in f" {answer.text.lower()} "


def test_a_refusal_reaches_the_openai_client_in_its_own_terms(tiny: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught, client_of(tiny) as client:
        client.audio.transcriptions.create(file=("talk.wav", b"<html>404</html>"), model="whisper-1")
    assert (caught.value.code, caught.value.param) == ("undecodable_audio", "file")
    assert caught.value.response.headers["x-request-id"]


def test_an_english_only_model_refuses_to_translate(tiny: Server) -> None:
    with (ROOT / "service" / "sample.flac").open("rb") as file:
        answer = httpx.post(f"{tiny.url}/v1/audio/translations", files={"file": file})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_task")


@pytest.mark.shared
@pytest.mark.skipif(not CONTAINERS, reason="no recordings beside the checkout")
def test_one_utterance_in_twelve_containers_is_one_text(base: Server, recordings: Path) -> None:
    texts: dict[str, str] = {}
    for name in CONTAINERS:
        with (recordings / name).open("rb") as file:
            answer = httpx.post(f"{base.url}/v1/audio/transcriptions", files={"file": file}, timeout=100)
        assert answer.status_code == 200, (name, answer.text)
        texts[name] = answer.json()["text"]
    assert len(texts) == 12
    (whole,) = {text for name, text in texts.items() if name not in CUT}
    assert whole.startswith(DINNER) and "mutton pieces" in whole
    for name, letters in CUT.items():
        assert texts[name].startswith(DINNER[:letters]), name


@pytest.mark.shared
@pytest.mark.skipif(not (SHARED / "speech" / "invalid").is_dir(), reason="no recordings beside the checkout")
@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("empty.mp3", 400, "empty_audio"),
        ("text.wav", 400, "undecodable_audio"),
        ("null.wav", 400, "empty_audio"),
        ("bad.wav", 400, "undecodable_audio"),
        ("truncated.flac", 200, None),
    ],
)
def test_a_broken_file_is_refused_or_read_as_far_as_it_goes(
    tiny: Server, name: str, status: int, code: str | None
) -> None:
    with (SHARED / "speech" / "invalid" / name).open("rb") as file:
        answer = httpx.post(f"{tiny.url}/v1/audio/transcriptions", files={"file": file}, timeout=100)
    assert answer.status_code == status, answer.text
    if code is not None:
        assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, "file")


def test_nothing_of_a_request_stays_on_disk(tiny: Server) -> None:
    with (ROOT / "service" / "sample.flac").open("rb") as file:
        httpx.post(f"{tiny.url}/v1/audio/transcriptions", files={"file": file}, timeout=100).raise_for_status()
    until(lambda: tiny.spooled() == [], "the spool is empty", seconds=20)
