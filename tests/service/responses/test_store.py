"""Responses on disk: found again by another instance, and bounded by bytes and age, later turns first."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import DiskFull, UnknownResponse
from service.responses.store import FILE, ResponseStore, Stored


class Clock:
    """Seconds that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def store(
    folder: Path, *, max_bytes: int = 1 << 20, keep_s: float = 100.0, clock: Clock | None = None
) -> ResponseStore:
    return ResponseStore(folder, max_bytes=max_bytes, keep_s=keep_s, clock=clock or Clock())


def response(id: str, previous: str | None = None, *, size: int = 10) -> Stored:
    output = [{"id": f"msg_{id}", "type": "message", "text": "x" * size}]
    return Stored(id, previous, {"id": id, "output": output}, ({"id": f"in_{id}", "type": "message"},))


def talk(responses: ResponseStore, *ids: str, size: int = 10) -> None:
    """A conversation of so many turns."""
    for place, id in enumerate(ids):
        responses.put(response(id, ids[place - 1] if place else None, size=size), ids[:place])


def kept(responses: ResponseStore, *ids: str) -> str:
    found = ""
    for id in ids:
        try:
            found += responses.get(id).id
        except UnknownResponse:
            found += "-"
    return found


def test_what_was_put_is_there_for_another_instance(tmp_path: Path) -> None:
    talk(store(tmp_path), "a", "b", "c")
    again = store(tmp_path)
    assert again.get("b") == response("b", "a")
    assert again.chain("c") == (response("a"), response("b", "a"), response("c", "b"))
    assert again.item("msg_b", param="x")["text"] == "x" * 10
    assert again.item("in_a", param="x") == {"id": "in_a", "type": "message"}


def test_what_is_nowhere_is_unknown(tmp_path: Path) -> None:
    responses = store(tmp_path)
    with pytest.raises(UnknownResponse) as raised:
        responses.chain("a")
    assert raised.value.param == "previous_response_id"
    with pytest.raises(UnknownResponse):
        responses.remove("a")
    with pytest.raises(UnknownResponse):
        responses.item("msg_a", param="input[0].id")


def test_a_removed_response_takes_its_items_with_it_and_breaks_the_chain(tmp_path: Path) -> None:
    responses = store(tmp_path)
    talk(responses, "a", "b")
    responses.remove("a")
    assert kept(responses, "a", "b") == "-b"
    with pytest.raises(UnknownResponse):
        responses.item("msg_a", param="x")
    with pytest.raises(UnknownResponse):
        responses.chain("b")
    assert b"msg_a" not in (tmp_path / FILE).read_bytes()


def test_an_item_that_was_sent_again_stays_the_one_it_was(tmp_path: Path) -> None:
    """Whoever keeps a conversation by himself sends the items that he was answered, under their ids."""
    responses = store(tmp_path)
    talk(responses, "a")
    responses.put(replace(response("b"), input=({"id": "msg_a", "type": "message", "text": "other"},)))
    assert responses.item("msg_a", param="x")["text"] == "x" * 10
    responses.remove("b")
    assert responses.item("msg_a", param="x")["text"] == "x" * 10
    responses.put(replace(response("c"), input=({"id": "msg_a", "type": "message", "text": "other"},)))
    responses.remove("a")
    assert responses.item("msg_a", param="x")["text"] == "other"


def test_a_conversation_that_goes_on_keeps_its_earlier_turns(tmp_path: Path) -> None:
    clock = Clock()
    responses = store(tmp_path, clock=clock)
    talk(responses, "a")
    talk(responses, "x")
    clock.now += 60
    responses.put(response("b", "a"), ["a"])
    clock.now += 60
    assert kept(responses, "a", "b", "x") == "ab-"
    clock.now += 41
    assert kept(responses, "a", "b") == "--"
    responses.put(response("c"))
    with sqlite3.connect(tmp_path / FILE) as database:
        assert database.execute("SELECT id FROM responses").fetchall() == [("c",)]
    database.close()


def test_over_the_limit_the_longest_unused_conversation_goes_its_last_turn_first(tmp_path: Path) -> None:
    clock = Clock()
    responses = store(tmp_path, max_bytes=4000, clock=clock)
    talk(responses, "a", "b", size=1000)
    clock.now += 1
    talk(responses, "c", size=1000)
    clock.now += 1
    talk(responses, "d", size=1000)
    assert kept(responses, "a", "b", "c", "d") == "a-cd"
    clock.now += 1
    talk(responses, "e", size=1000)
    assert kept(responses, "a", "c", "d", "e") == "-cde"


def test_one_that_is_larger_than_all_may_be_is_not_kept(tmp_path: Path) -> None:
    responses = store(tmp_path, max_bytes=500)
    responses.put(response("a", size=1000))
    assert kept(responses, "a") == "-"


def test_the_file_does_not_grow_with_what_has_gone(tmp_path: Path) -> None:
    responses = store(tmp_path, max_bytes=100_000)
    for number in range(60):
        responses.put(response(str(number), size=20_000))
    assert (tmp_path / FILE).stat().st_size < 300_000


def test_a_damaged_file_is_put_aside_and_costs_no_request(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all, " * 100)
    responses = store(tmp_path)
    responses.put(response("a"))
    assert kept(responses, "a") == "a"
    assert (tmp_path / FILE).with_suffix(".damaged").is_file()


def scarred(folder: Path) -> None:
    """A file whose first page is whole and whose others are not."""
    data = bytearray((folder / FILE).read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 64] = b"\xff" * 64
    (folder / FILE).write_bytes(data)


def test_damage_that_shows_later_is_put_aside_too(tmp_path: Path) -> None:
    tasks: list[Callable[[ResponseStore], object]] = [
        lambda responses: responses.put(response("b")),
        lambda responses: kept(responses, "0"),
        lambda responses: kept(responses, "none"),
    ]
    for number, task in enumerate(tasks):
        folder = tmp_path / str(number)
        talk(store(folder), *(f"{turn}" for turn in range(20)), size=5000)
        scarred(folder)
        responses = store(folder)
        task(responses)
        responses.put(response("c"))
        assert kept(responses, "0", "c") == "-c"
        assert (folder / FILE).with_suffix(".damaged").is_file()


def test_many_who_meet_the_damage_put_one_file_aside(tmp_path: Path) -> None:
    talk(store(tmp_path), *(f"{turn}" for turn in range(20)), size=5000)
    scarred(tmp_path)
    responses = store(tmp_path)
    names = [f"new_{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: responses.put(response(name)), names))
    assert kept(responses, *names) == "".join(names)


def test_a_record_that_is_damaged_is_gone_and_costs_no_other(tmp_path: Path) -> None:
    responses = store(tmp_path)
    responses.put(response("a"))
    responses.put(response("b"))
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("UPDATE responses SET body = ? WHERE id = 'a'", (b'{"id": "a", \xff',))
    assert kept(responses, "a", "b") == "-b"


def test_nobody_else_may_read_what_was_said(tmp_path: Path) -> None:
    store(tmp_path).put(response("a"))
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_full_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    responses = store(tmp_path)
    responses.put(response("a"))
    with sqlite3.connect(tmp_path / FILE) as database:
        (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.close()
    connect = sqlite3.connect

    def small(*arguments: object, **options: object) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(*arguments, **options)  # type: ignore[call-overload]
        made.execute(f"PRAGMA max_page_count = {pages + 2}")
        return made

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(DiskFull):
        responses.put(response("b", size=100_000))
    assert kept(responses, "a", "b") == "a-"
