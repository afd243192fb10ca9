"""The example sidecar with a real server, and that the service files ask for what there is."""

from __future__ import annotations

import plistlib
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from examples.sidecar import Sidecar, main
from service.__main__ import _parser

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.port
def test_a_sidecar_serves_its_owner_alone_and_leaves_nothing(tmp_path: Path) -> None:
    flags = ("--whisper-model", "no/such", "--llm-model", "", "--offline", "--data-dir", str(tmp_path))
    with Sidecar(flags, command=(sys.executable, "-m", "service", "serve")) as sidecar:
        assert sidecar.client.get("/v1").status_code == 200
        server = psutil.Process(sidecar._process.pid)
        family = [server, *server.children(recursive=True)]
        (folder,) = {Path(each.laddr).parent for each in server.net_connections("unix") if "/socket" in str(each.laddr)}
        stranger = httpx.Client(transport=httpx.HTTPTransport(uds=str(folder / "socket")), base_url="http://starling")
        assert stranger.get("/v1").status_code == 401
        stranger.close()
    assert psutil.wait_procs(family, timeout=10)[1] == []
    assert not folder.exists()


@pytest.mark.port
def test_a_server_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    flags = ("--data-dir", str(tmp_path / "file" / "x"))
    with (
        pytest.raises(RuntimeError, match="the server ended with 1"),
        Sidecar(flags, command=(sys.executable, "-m", "service", "serve")),
    ):
        pass


def test_the_command_beside_the_interpreter_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a virtual environment that nobody has activated."""
    command = tmp_path / "starling"
    command.write_text("#!/bin/sh\nexit 7\n")
    command.chmod(0o700)
    (tmp_path / "talk.wav").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "argv", ["sidecar.py", str(tmp_path / "talk.wav")])
    with pytest.raises(RuntimeError, match="the server ended with 7"):
        main()


def test_without_a_recording_it_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sidecar.py"])
    with pytest.raises(SystemExit, match=r"examples/sidecar.py talk.wav"):
        main()


def test_launchd_s_file_is_one_and_its_flags_are_there() -> None:
    told = plistlib.loads((EXAMPLES / "org.starling.serve.plist").read_bytes())
    assert vars(_parser().parse_args(told["ProgramArguments"][1:]))["api_key_file"].endswith("keys")
    assert told["Umask"] == 0o077


def test_systemd_s_flags_are_there() -> None:
    lines = (EXAMPLES / "starling.service").read_text().splitlines()
    (command,) = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    assert vars(_parser().parse_args(command.split()[1:]))["uds"] == "%t/starling.sock"
