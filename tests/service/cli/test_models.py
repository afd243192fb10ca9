"""`starling models` and `starling get`, with the workers' own command behind them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.cli import models
from service.config import Config


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return Config(data_dir=str(tmp_path / "data"), offline=True)


def test_the_starters_are_listed_before_they_are_used(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    assert models.show(config, as_json=False) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["model", "from", "size", "state"]
    assert ["whisper-base", "starter", "converted", "on", "first", "use"] in lines


def test_json_is_one_object_a_line(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    assert models.show(config, as_json=True) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"whisper-base", "whisper-tiny.en"} <= {entry["id"] for entry in entries}


def test_a_model_that_cannot_be_fetched_fails_with_the_reason(
    config: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    assert models.get("x/none", config) == 1
    assert capfd.readouterr().err.startswith("x/none is not on this machine and the hub is off limits (offline)")


def test_what_is_not_whole_says_how_to_make_it_so() -> None:
    assert models.state(models.Entry("x/y", "llm", "hub", 1, "/", ready=False)) == "not whole: starling get x/y"
    damaged = models.Entry("whisper-base", "whisper", "starter", 1, "/", ready=False)
    assert models.state(damaged) == "damaged, converted again on first use"
