"""How old a session is: what counts, and what a service that was killed leaves to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.dictation.life import Life


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_session_ages_from_its_last_audio(tmp_path: Path, clock: Clock) -> None:
    life = Life(tmp_path, clock)
    clock.now += 50
    assert life.age == 50
    life.restart(ended=False)
    clock.now += 3
    assert life.age == 3


def test_time_in_which_no_service_was_there_does_not_count(tmp_path: Path, clock: Clock) -> None:
    life = Life(tmp_path, clock)
    clock.now += 100
    life.mark()
    clock.now += 86_400
    again = Life(tmp_path, clock)
    again.resume(ended=False)
    assert again.age == 100
    clock.now += 7
    assert again.age == 107


def test_the_end_of_a_session_starts_another_count(tmp_path: Path, clock: Clock) -> None:
    life = Life(tmp_path, clock)
    clock.now += 100
    life.mark()
    again = Life(tmp_path, clock)
    again.resume(ended=True)
    assert (again.age, again.ended) == (0, True)


def test_without_a_mark_the_count_starts_anew(tmp_path: Path, clock: Clock) -> None:
    life = Life(tmp_path, clock)
    life.resume(ended=False)
    assert life.age == 0


@pytest.mark.parametrize("left", [b"", b"{", b"[1]", b'{"ended": false, "age": "old"}'])
def test_a_torn_mark_is_none(tmp_path: Path, clock: Clock, left: bytes) -> None:
    (tmp_path / "life").write_bytes(left)
    life = Life(tmp_path, clock)
    life.resume(ended=False)
    assert life.age == 0


def test_a_mark_is_due_when_the_file_is_off_by_half_a_minute(tmp_path: Path, clock: Clock) -> None:
    life = Life(tmp_path, clock)
    clock.now += 29
    assert not life.stale
    clock.now += 1
    assert life.stale
    life.mark()
    assert not life.stale
    life.restart(ended=False)
    assert life.stale, "a kill now would take half a minute from the session's life"


def test_the_end_is_marked_at_once(tmp_path: Path, clock: Clock) -> None:
    life = Life(tmp_path, clock)
    life.restart(ended=True)
    assert life.stale


def test_a_session_whose_folder_is_gone_is_not_marked(tmp_path: Path, clock: Clock) -> None:
    life = Life(tmp_path / "gone", clock)
    life.mark()
    assert list(tmp_path.iterdir()) == []
