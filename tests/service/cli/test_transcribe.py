"""`starling transcribe` against a scripted service on a real port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ModelNotConfigured, UndecodableAudio
from protocol.jobs import Decode
from service.cli.transcribe import Wanted, output_names, run
from service.config import Config
from tests.scripted import WAV
from tests.service.cli.conftest import Serve

TEXT = "And so my fellow Americans ask not."


@pytest.fixture
def recording(tmp_path: Path) -> str:
    path = tmp_path / "talk.wav"
    path.write_bytes(WAV)
    return str(path)


@pytest.mark.port
def test_a_text_goes_to_stdout(serving: Serve, recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    url, _ = serving()
    assert run([recording], Wanted(), None, url, Config()) == 0
    assert capsys.readouterr() == (f"{TEXT}\n", "")


@pytest.mark.port
def test_the_running_service_is_found_by_host_and_port(
    serving: Serve, recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, _ = serving()
    assert run([recording], Wanted(format="json"), None, None, Config(port=int(url.rpartition(":")[2]))) == 0
    assert json.loads(capsys.readouterr().out)["text"] == TEXT


@pytest.mark.port
def test_each_file_gets_its_own_output(serving: Serve, tmp_path: Path) -> None:
    url, _ = serving()
    for name in ("a.mp3", "a.wav", "b.wav"):
        (tmp_path / name).write_bytes(WAV)
    out = tmp_path / "out"
    files = [str(tmp_path / name) for name in ("a.mp3", "a.wav", "b.wav")]
    assert run(files, Wanted(format="srt"), str(out), url, Config()) == 0
    assert sorted(path.name for path in out.iterdir()) == ["a.mp3.srt", "a.wav.srt", "b.srt"]
    assert (out / "b.srt").read_text().startswith("1\n00:00:00,000 --> 00:00:02,500\nAnd so my fellow Americans\n")


@pytest.mark.port
def test_a_bad_file_is_named_and_the_others_go_on(
    serving: Serve, recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, _ = serving()
    assert run([str(tmp_path / "none.wav"), recording], Wanted(), None, url, Config()) == 1
    printed = capsys.readouterr()
    assert printed.out == f"{TEXT}\n"
    assert printed.err == f"{tmp_path / 'none.wav'}: No such file or directory\n"


@pytest.mark.port
def test_a_refusal_is_given_in_the_services_words(
    serving: Serve, recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, parts = serving()
    parts.media._script = {Decode: [UndecodableAudio("it is no audio")]}
    assert run([recording], Wanted(), None, url, Config()) == 1
    assert capsys.readouterr() == ("", f"{recording}: it is no audio\n")


@pytest.mark.port
@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_name_and_a_prompt_may_be_in_any_encoding(serving: Serve, tmp_path: Path, locale: dict[str, str]) -> None:
    url, parts = serving()
    recording = os.fsencode(tmp_path) + b"/bad\xff.wav"
    try:
        Path(os.fsdecode(recording)).write_bytes(WAV)
    except OSError:
        pytest.skip("file names are always UTF-8 here")
    command = [sys.executable, "-m", "service", "transcribe", "--url", url, "--prompt", "Grüße".encode()]
    environment = {**os.environ, **locale}
    done = subprocess.run([*command, recording, b"no\xff.wav"], capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (1, f"{TEXT}\n".encode())
    assert done.stderr in (b"no\\udcff.wav: No such file or directory\n", b"no\xff.wav: No such file or directory\n")
    assert parts.decoding.prompt == "Grüße"


@pytest.mark.port
def test_options_become_fields_of_the_request(serving: Serve, recording: str) -> None:
    url, parts = serving()
    wanted = Wanted(language="german", prompt="Hallo", translate=True)
    assert run([recording], wanted, None, url, Config()) == 0
    assert parts.whisper.jobs[0].task == "translate"
    assert (parts.decoding.language, parts.decoding.prompt) == ("de", "Hallo")


@pytest.mark.port
def test_a_service_that_cannot_transcribe_says_why(
    serving: Serve, recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, parts = serving()
    parts.whisper.failure = ModelNotConfigured("x/y is not here")
    assert run([recording], Wanted(), None, url, Config()) == 1
    assert capsys.readouterr() == ("", "starling: x/y is not here\n")


@pytest.mark.port
def test_a_named_service_must_be_there(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([recording], Wanted(), None, "http://127.0.0.1:1", Config()) == 1
    assert capsys.readouterr().err == "starling: no Starling answers at http://127.0.0.1:1\n"


@pytest.mark.parametrize(
    ("inputs", "names"),
    [
        (["talk.mp3"], ["talk.srt"]),
        (["a.mp3", "a.wav"], ["a.mp3.srt", "a.wav.srt"]),
        (["A.mp3", "a.wav"], ["A.mp3.srt", "a.wav.srt"]),
        (["x/a.mp3", "y/a.mp3"], ["a.mp3.srt", "a.mp3.2.srt"]),
        (["a.mp3", "a.mp3.wav", "a.wav"], ["a.mp3.srt", "a.mp3.wav.srt", "a.wav.srt"]),
        (["talk.srt"], ["talk.srt.srt"]),
        (["no-suffix"], ["no-suffix.srt"]),
    ],
)
def test_no_output_replaces_another_one_or_an_input(inputs: list[str], names: list[str]) -> None:
    assert [str(name) for name in output_names([Path(each) for each in inputs], "srt")] == names
