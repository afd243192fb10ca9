"""What `starling doctor` makes of what it finds."""

from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from rich.console import Console

from protocol.events import Backend
from service.cli import doctor
from service.cli.models import Entry
from service.config import Config

TINY = Entry("whisper-tiny.en", "whisper", "starter", 0, "/data/models/whisper-tiny.en", ready=False)
HALF = Entry("x/half", "whisper", "hub", 10, "/hub/half", ready=False)
WHOLE = Entry("x/whole", "whisper", "hub", 10, "/hub/whole", ready=True)
SMOL = Entry("smol", "llm", "starter", 0, "/data/models/smol", ready=False)
ENTRIES = {entry.id: entry for entry in (TINY, HALF, WHOLE, SMOL)}


def installed(**versions: str) -> Callable[[str], str]:
    names: Mapping[str, str] = {name.replace("_", "-"): version for name, version in versions.items()}

    def version(name: str) -> str:
        if name not in names:
            raise importlib.metadata.PackageNotFoundError(name)
        return names[name]

    return version


def test_one_build_of_mlx_is_right() -> None:
    (check,) = doctor.packages(installed(mlx="0.32", mlx_whisper="0.4", mlx_metal="0.32"))
    assert (check.status, check.found) == ("ok", "0.32 for Metal, mlx-whisper 0.4")


def test_no_build_of_mlx_stops() -> None:
    (check,) = doctor.packages(installed(mlx="0.32", mlx_whisper="0.4"))
    assert (check.status, check.advice.split(" (")[0]) == ("stop", "run `make setup`")


def test_two_builds_of_mlx_overwrite_each_other() -> None:
    (check,) = doctor.packages(installed(mlx="1", mlx_whisper="1", mlx_cpu="1", mlx_cuda_13="1"))
    assert (check.status, check.found) == ("stop", "several builds: CUDA 13, CPU")


def test_torch_is_a_gap() -> None:
    checks = list(doctor.packages(installed(mlx="1", mlx_whisper="1", mlx_cpu="1", torch="2")))
    assert [(check.name, check.status) for check in checks] == [("MLX", "ok"), ("torch", "gap")]


def test_the_reference_blas_and_a_missing_compiler_are_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    probe = doctor.Probe(Backend("cpu", "0.32", "reference BLAS", slow=True), slow_because="no system OpenBLAS")
    checks = {check.name: check for check in doctor.judged(probe)}
    assert checks["BLAS"].status == "gap"
    assert "about fifty times slower than OpenBLAS (no system OpenBLAS)" in checks["BLAS"].found
    assert checks["compiler"].advice == "sudo apt-get install g++"


def test_a_gpu_needs_neither_blas_nor_compiler() -> None:
    assert [check.name for check in doctor.judged(doctor.Probe(Backend("metal", "0.32")))] == ["backend"]


@pytest.mark.parametrize(
    ("name", "offline", "status", "advice"),
    [
        ("whisper-tiny.en", True, "ok", ""),
        ("x/whole", True, "ok", ""),
        ("x/half", True, "stop", "starling get x/half"),
        ("x/half", False, "gap", "ahead of time: starling get x/half"),
        ("whisper-huge", False, "stop", "--whisper-model takes a folder, a Hugging Face id or one of whisper-tiny.en"),
    ],
)
def test_a_model_is_here_or_can_be_had(name: str, offline: bool, status: str, advice: str) -> None:
    check = doctor.judged_model(name, "whisper", ENTRIES, offline=offline)
    assert (check.status, check.advice) == (status, advice)


def test_a_language_model_is_judged_as_one() -> None:
    smol, missing, ear = (
        doctor.judged_model(name, "llm", ENTRIES, offline=False) for name in ("smol", "gpt", "whisper-tiny.en")
    )
    assert (smol.name, smol.status) == ("language model", "ok")
    assert (missing.status, missing.advice) == ("stop", "--llm-model takes a folder, a Hugging Face id or one of smol")
    assert (ear.status, ear.found) == ("stop", "whisper-tiny.en is another kind of model")


def test_a_data_directory_may_still_be_made(tmp_path: Path) -> None:
    assert doctor.data_dir(tmp_path / "new" / "er").status == "ok"
    file = tmp_path / "file"
    file.touch()
    assert doctor.data_dir(file / "below").status == "stop"


def test_the_hub_is_described_and_not_asked() -> None:
    assert doctor.hub(Config(), {"HF_HUB_OFFLINE": "1"}).found == "never asked (offline)"
    assert doctor.hub(Config(), {"HF_TOKEN": "secret"}).found == (
        "asked for models that are not here, with HF_TOKEN (not tried now)"
    )


@pytest.mark.port
def test_a_port_that_another_program_has_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.cli.address.PROBE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert doctor.port(Config(port=other.getsockname()[1])).status == "stop"


def test_the_report_is_plain_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [doctor.Check("a", "ok", "[1]"), doctor.Check("b", "gap", "slow", "do this")]
    doctor.show(checks, Console(highlight=False, width=60))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["ok   a  [1]", "gap  b  slow", "        → do this", "", "Starling can serve. 1 could be better."]
