"""The command line's own answers, before any command runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.__main__ import main


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, "starling 0.1.0\n")


def test_a_wrong_setting_ends_with_2_and_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STARLING_PORT", "many")
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == "starling: STARLING_PORT: expected a whole number from 0 to 65535, not 'many'\n"


def test_the_file_may_be_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.toml"
    file.write_text("ports = 1\n")
    monkeypatch.setenv("STARLING_CONFIG", str(file))
    assert main(["models"]) == 2
    assert capsys.readouterr().err == f"starling: {file}: ports: unknown setting; did you mean port?\n"


def test_an_unknown_flag_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--prot", "1"])
    assert ended.value.code == 2
    assert "--prot" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["doctor", "models"])
def test_a_terminal_may_know_ascii_alone(tmp_path: Path, command: str) -> None:
    arguments = [sys.executable, "-m", "service", command, "--data-dir", str(tmp_path / "dätä")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(arguments, capture_output=True, env=environment, timeout=120)
    assert b"Traceback" not in done.stderr
    assert done.stdout.isascii() and len(done.stdout.splitlines()) > 2
