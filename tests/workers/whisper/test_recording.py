"""Spans of a spool file as one recording, and its times in the caller's audio."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.errors import RequestCancelled
from workers.whisper.recording import Recording, Spool


def test_spans_are_joined_and_times_mapped_back(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    np.arange(16000 * 2, dtype="<i2").tofile(path)
    recording = Recording(Spool(str(path)), 0, 32000, [(1600, 3200), (16000, 24000)])
    assert recording.samples == 9600
    joined = recording.read(1500, 1700) * 32768
    assert joined.tolist() == [*range(3100, 3200), *range(16000, 16100)]
    assert recording.original(0.0) == 0.1
    assert recording.original(0.1, end=True) == 0.2
    assert recording.original(0.1) == 1.0
    assert recording.original(0.6, end=True) == 1.5
    assert recording.original(99.0) == 1.5


def test_past_the_end_there_is_silence(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    np.full(100, 16384, "<i2").tofile(path)
    recording = Recording(Spool(str(path)), 10, 500)
    assert recording.samples == 90
    assert recording.read(80, 100).tolist() == [0.5] * 10 + [0.0] * 10


def test_an_empty_spool_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.touch()
    assert Recording(Spool(str(path)), 0, 0).samples == 0


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_spool_that_is_removed_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    np.full(100, 16384, "<i2").tofile(path)
    recording = Recording(Spool(str(path)), 0, 100)
    path.unlink()
    assert recording.read(0, 2).tolist() == [0.5, 0.5]


def test_spans_of_one_job_share_an_open_file_and_the_last_one_closes_it(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    np.zeros(100, "<i2").tofile(path)
    before = open_files()
    spool = Spool(str(path))
    recordings = [Recording(spool, 0, 100, [(i, i + 10)]) for i in range(9)]
    del spool
    assert open_files() == before + 1
    recordings.clear()
    assert open_files() == before


def test_a_file_that_is_gone_ends_the_job_as_if_it_were_cancelled(tmp_path: Path) -> None:
    with pytest.raises(RequestCancelled):
        Spool(str(tmp_path / "gone"))
