"""The spool on a real disk, and on one that is full."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import DiskFull, PayloadTooLarge
from service.spool import Spool, Usage

ROOT = Path(__file__).parents[2]

HOLDER = """
import sys
from service.spool import Spool
with Spool(sys.argv[1]) as spool, spool.upload() as file:
    file.write(b"x" * 10)
    print(spool.path, flush=True)
    sys.stdin.read()
"""


def holder(data_dir: Path) -> subprocess.Popen[str]:
    """Another service that holds a spool until it is killed or its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool(tmp_path) as made:
        yield made


def visible(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


def test_chunks_are_written_in_order_and_are_on_disk_at_once(spool: Spool) -> None:
    with spool.upload(limit=10) as file:
        for chunk in (b"one", bytearray(b"two"), memoryview(b"three")[:4], b""):
            file.write(chunk)
        assert file.path.read_bytes() == b"onetwothre"
        assert file.size == 10


def test_a_chunk_over_the_limit_is_refused_naming_the_limit_and_not_written(spool: Spool) -> None:
    with spool.upload(limit=10) as file:
        file.write(b"0123456789")
        with pytest.raises(PayloadTooLarge, match="larger than the 10 bytes that are allowed"):
            file.write(b"x")
        assert file.path.read_bytes() == b"0123456789"


def test_files_are_gone_after_their_context_whatever_happened(spool: Spool) -> None:
    with pytest.raises(ZeroDivisionError), spool.upload() as file, spool.pcm() as pcm:
        assert sorted(visible(spool.path)) == sorted([file.path.name, pcm.name])
        raise ZeroDivisionError
    assert spool.usage() == Usage(files=0, bytes=0)
    assert visible(spool.path) == []


def test_nobody_waits_until_a_file_is_removed(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, allowed = Path.unlink, threading.Event()

    def busy(path: Path, missing_ok: bool = False) -> None:
        assert allowed.wait(30)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", busy)
    with spool.upload() as file, spool.pcm() as pcm:
        pass
    assert sorted(visible(spool.path)) == sorted([file.path.name, pcm.name])
    allowed.set()
    assert spool.usage() == Usage(files=0, bytes=0)


def test_a_file_that_somebody_else_removed_is_no_error(spool: Spool) -> None:
    with spool.upload() as file, spool.pcm() as pcm:
        file.path.unlink()
        pcm.unlink()


def test_a_pcm_file_exists_from_the_start_and_is_empty(spool: Spool) -> None:
    with spool.pcm() as pcm:
        assert pcm.read_bytes() == b""


def test_nobody_else_may_look(spool: Spool) -> None:
    with spool.upload() as file, spool.pcm() as pcm:
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (spool.path, file.path, pcm)]
    assert modes == [0o700, 0o600, 0o600]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_as_such(spool: Spool) -> None:
    with spool.upload() as file:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file._file.fileno())
        os.close(full)
        with pytest.raises(DiskFull, match="the server's disk is full"):
            file.write(b"x")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_file_that_finds_no_room_at_all_is_a_full_disk(
    spool: Spool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(DiskFull), spool.upload():
        pass
    with pytest.raises(DiskFull), spool.pcm():
        pass


def test_usage_counts_files_and_allocated_bytes(spool: Spool) -> None:
    assert spool.usage() == Usage(files=0, bytes=0)
    with spool.upload() as file, spool.pcm():
        file.write(b"x" * 100_000)
        os.fsync(file._file.fileno())
        usage = spool.usage()
    assert usage.files == 2
    assert 100_000 <= usage.bytes < 1 << 20


def test_leaving_removes_the_folder_with_all_it_holds(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        (spool.path / "left behind").write_bytes(b"x")
    assert visible(tmp_path / "spool") == []


def test_the_folder_of_a_killed_service_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        other.kill()
        other.wait()
        assert len(visible(theirs)) == 1
        with Spool(tmp_path) as spool:
            assert visible(tmp_path / "spool") == [spool.path.name]


def test_the_folder_of_a_living_service_is_left_alone(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with Spool(tmp_path):
            assert len(visible(theirs)) == 1
        assert len(visible(theirs)) == 1
        other.communicate("")
    assert not theirs.exists()


def test_what_is_no_folder_of_a_service_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "note").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "spool" / "link").symlink_to(tmp_path / "elsewhere")
    with Spool(tmp_path):
        pass
    assert sorted(visible(tmp_path / "spool")) == ["link", "note"]
    assert (tmp_path / "elsewhere").is_dir()
