"""The folders of sessions on a real disk: made, found again, removed, and what is left of them when a service dies."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import DiskFull, ShuttingDown, UnknownSession
from protocol.jobs import Raw
from service.dictation.chunk import Chunk
from service.dictation.store import Store
from tests.service.dictation.conftest import spec

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
S16 = Raw("s16le", 16_000, 1)
FILE = Chunk(None, b"RIFF")

HOLDER = """
import asyncio, sys
from protocol.jobs import Raw
from service.dictation.chunk import Chunk
from service.dictation.store import Store
from tests.service.dictation.conftest import spec

async def main() -> None:
    with Store(sys.argv[1]) as store:
        found = store.recover()
        session = found[0] if found else store.create(spec(id="held"))
        number = len(session.records)
        while True:
            await session.append(Chunk(Raw("s16le"), number.to_bytes(4, "little") * 100))
            await session.tell(f"{number}".encode(), sync=False)
            print(number, flush=True)
            number += 1

asyncio.run(main())
"""


def holder(data_dir: Path) -> subprocess.Popen[str]:
    """Another service that takes chunks and says the number of each, until it is killed."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data_dir)], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)}
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def sessions(data_dir: Path) -> list[str]:
    return names(data_dir / "sessions")


async def test_a_session_is_found_again_with_all_that_was_asked_sent_and_told(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        session = store.create(spec(id="one", vad_silence_ms=700))
        await session.append(Chunk(S16, bytes(200)))
        await session.tell(b"first", sync=True)
        await session.tell(b"", sync=False)
        await session.tell(b"third", sync=False)
        session.pcm.write_bytes(b"derived")
    with Store(tmp_path) as store:
        [again] = store.recover()
        assert again.spec == spec(id="one", vad_silence_ms=700)
        assert (len(again.records), again.samples, again.story) == (1, 100, [b"first", b"", b"third"])
        assert again.pcm.read_bytes() == b""
        await again.append(Chunk(S16, bytes(2)), 1)
        await again.tell(b"fourth", sync=True)
    with Store(tmp_path) as store:
        [again] = store.recover()
        assert (again.samples, again.story[-1]) == (101, b"fourth")


async def test_a_story_that_the_disk_spoilt_is_cut_there_kept_beside_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(tmp_path) as store:
        session = store.create(spec(id="one"))
        for record in (b"first", b"second", b"third"):
            await session.tell(record, sync=True)
    path = tmp_path / "sessions" / "one" / "story"
    whole = path.read_bytes()
    spoilt = whole.replace(b"second", b"sec0nd")
    path.write_bytes(spoilt)
    with Store(tmp_path) as store:
        [again] = store.recover()
        assert again.story == [b"first"]
        await again.tell(b"anew", sync=True)
    assert "story is damaged at byte" in caplog.text
    assert path.with_name("story.damaged").read_bytes() == spoilt
    with Store(tmp_path) as store:
        [again] = store.recover()
        assert again.story == [b"first", b"anew"]
        again.remove()
    assert sessions(tmp_path) == []


async def test_a_record_that_was_not_finished_is_dropped_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(tmp_path) as store:
        session = store.create(spec(id="one"))
        await session.tell(b"first", sync=True)
        await session.tell(b"second", sync=True)
    path = tmp_path / "sessions" / "one" / "story"
    for torn in (path.read_bytes()[:-1], path.read_bytes()[:-7] + bytes(4000)):
        path.write_bytes(torn)
        with Store(tmp_path) as store:
            assert [again.story for again in store.recover()] == [[b"first"]]
        assert caplog.records == []
        assert not path.with_name("story.damaged").exists()


def test_sessions_are_found_oldest_first(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for name, created in (("a", 3), ("b", 1), ("c", 2)):
            store.create(spec(id=name, created=created))
    with Store(tmp_path) as store:
        assert [session.spec.id for session in store.recover()] == ["b", "c", "a"]


async def test_nobody_else_may_look(store: Store) -> None:
    session = store.create(spec())
    async with session.received(FILE) as received:
        folders, files = (session.folder.parent, session.folder), [*session.folder.iterdir()]
        assert {received.path, received.target, session.pcm} < set(files)
        assert [stat.S_IMODE(path.stat().st_mode) for path in folders] == [0o700, 0o700]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


async def test_nothing_is_left_of_a_session_that_was_removed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        session = store.create(spec())
        async with session.received(FILE) as received:
            await session.append(received, 0, 100)
        assert names(session.folder) == ["0.file", "audio", "pcm", "session.json", "story"]
        session.remove()
        session.remove()
        assert sessions(tmp_path) == []
        assert store.usage() == 0
        store.create(spec())


async def test_a_removed_session_is_unknown_to_whoever_still_has_it(store: Store) -> None:
    session = store.create(spec())
    session.remove()
    with pytest.raises(UnknownSession):
        await session.append(Chunk(S16, bytes(2)))
    with pytest.raises(UnknownSession):
        await session.tell(b"late", sync=False)
    with pytest.raises(UnknownSession):
        async with session.received(FILE):
            pass


async def test_a_session_removed_while_its_file_is_decoded_is_unknown_and_leaves_nothing(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        session = store.create(spec())
        with pytest.raises(UnknownSession):
            async with session.received(FILE) as received:
                session.remove()
                await session.append(received, 0, 100)
        assert sessions(tmp_path) == []


async def test_a_store_that_was_left_takes_nothing_and_keeps_all(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        session = store.create(spec())
        await session.append(Chunk(S16, bytes(2)))
    with pytest.raises(ShuttingDown):
        await session.append(Chunk(S16, bytes(2)))
    with Store(tmp_path) as store:
        assert [len(session.records) for session in store.recover()] == [1]


async def test_a_file_that_is_not_appended_leaves_nothing(store: Store) -> None:
    session = store.create(spec())
    with pytest.raises(ZeroDivisionError):
        async with session.received(FILE) as received:
            assert received.path.read_bytes() == b"RIFF"
            assert received.target.read_bytes() == b""
            _ = 1 / 0
    assert names(session.folder) == ["audio", "pcm", "session.json", "story"]
    assert (len(session.records), session.runs()) == (0, ())


@pytest.mark.parametrize("linkable", [True, False])
async def test_an_upload_becomes_part_of_the_session_and_may_then_go(
    store: Store, tmp_path: Path, linkable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    if not linkable:
        monkeypatch.setattr(os, "link", no_link)
    upload = tmp_path / "upload"
    upload.write_bytes(b"RIFF" * 1000)
    session = store.create(spec())
    async with session.received(Chunk(None, path=upload)) as received:
        await session.append(received, 0, 100)
    upload.unlink()
    [run] = session.runs()
    assert Path(run.path) == session.folder / "0.file"
    assert (session.folder / "0.file").read_bytes() == b"RIFF" * 1000
    assert (run.start, run.stop, run.raw, session.samples) == (0, 4000, None, 100)


async def test_files_that_no_chunk_names_go_at_the_next_start(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        session = store.create(spec())
        async with session.received(FILE) as received:
            await session.append(received, 0, 100)
        for name in ("1.file", "received-ab", "received-ab.pcm"):
            (session.folder / name).write_bytes(b"x")
    with Store(tmp_path) as store:
        [session] = store.recover()
        assert names(session.folder) == ["0.file", "audio", "pcm", "session.json", "story"]


def story_of(data_dir: Path) -> list[bytes]:
    with Store(data_dir) as store:
        return store.recover()[0].story


async def test_a_story_torn_at_any_byte_has_its_whole_records_and_goes_on(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        session = store.create(spec())
        sizes = []
        for record in (b"one", b"", b"three" * 5):
            sizes.append((session.folder / "story").stat().st_size)
            await session.tell(record, sync=False)
        story = session.folder / "story"
    whole = story.read_bytes()
    for at in range(sizes[0], len(whole)):
        complete = [b"one", b"", b"three" * 5][: sum(size <= at for size in sizes) - 1]
        for tail in (b"", b"\xff" * 30, bytes(len(whole) - at)):
            story.write_bytes(whole[:at] + tail)
            assert story_of(tmp_path) == complete
    story.write_bytes(whole[:-1])
    with Store(tmp_path) as store:
        [session] = store.recover()
        await session.tell(b"more", sync=True)
    assert story_of(tmp_path) == [b"one", b"", b"more"]


async def test_a_story_that_finds_no_room_is_as_before(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    session = store.create(spec())
    await session.tell(b"one", sync=True)
    size = (session.folder / "story").stat().st_size

    def full(descriptor: int, data: Any, at: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    for sync in (True, False):
        with monkeypatch.context() as patched, pytest.raises(DiskFull):
            patched.setattr(os, "pwrite", full)
            await session.tell(b"two", sync=sync)
    assert (session.folder / "story").stat().st_size == size


async def test_all_sessions_together_may_take_so_much_and_no_more(tmp_path: Path) -> None:
    with Store(tmp_path, 20_000) as store:
        one, two = store.create(spec(id="one")), store.create(spec(id="two"))
        await one.append(Chunk(S16, bytes(8_000)))
        with pytest.raises(DiskFull, match="the dictations take all of the 20000 bytes that are allowed"):
            await two.append(Chunk(S16, bytes(8_000)))
        assert len(two.records) == 0
        with pytest.raises(DiskFull):
            async with two.received(Chunk(None, bytes(8_000))):
                pass
        await two.tell(b"what is said finds room", sync=False)
        one.remove()
        await two.append(Chunk(S16, bytes(8_000)))


def test_a_session_that_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with Store(tmp_path) as store:
        for place in ("service.dictation.store.sync", "service.dictation.store.sync_folder"):
            with monkeypatch.context() as patched, pytest.raises(DiskFull):
                patched.setattr(place, full)
                store.create(spec())
            assert sessions(tmp_path) == []
        store.create(spec())


async def test_usage_is_what_the_disk_allocated(store: Store) -> None:
    session = store.create(spec())
    empty = store.usage()
    await session.append(Chunk(S16, bytes(1 << 20)))
    assert 1 << 20 <= store.usage() - empty <= (1 << 20) + 16_384


def test_what_is_half_made_or_half_removed_is_swept_and_nothing_else(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.create(spec(id="whole"))
    home = tmp_path / "sessions"
    for name in (".new-ab", ".gone-ab-12"):
        (home / name).mkdir()
        (home / name / "audio").write_bytes(b"x")
    (home / "note.txt").write_text("mine")
    (home / "folder").mkdir()
    (home / "link").symlink_to(tmp_path)
    with Store(tmp_path) as store:
        assert [session.spec.id for session in store.recover()] == ["whole"]
        assert sessions(tmp_path) == ["folder", "link", "note.txt", "whole"]
        assert names(home / "folder") == []


@pytest.mark.parametrize("file", ["session.json", "audio", "story"])
def test_a_session_that_cannot_be_read_is_left_as_it_is(
    tmp_path: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(tmp_path) as store:
        for name in ("bad", "good"):
            store.create(spec(id=name))
    (tmp_path / "sessions" / "bad" / file).write_bytes(b"not what it was")
    with Store(tmp_path) as store:
        assert [session.spec.id for session in store.recover()] == ["good"]
    assert (tmp_path / "sessions" / "bad" / file).read_bytes() == b"not what it was"
    assert "a session cannot be read and is left as it is" in caplog.text


def test_sessions_of_a_service_that_lives_are_not_taken_and_those_of_a_killed_one_are(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        assert other.stdout is not None
        other.stdout.readline()
        half_removed = tmp_path / "sessions" / ".gone-ab"
        half_removed.mkdir()
        with Store(tmp_path) as store:
            assert store.recover() == []
            store.create(spec(id="mine"))
            assert sessions(tmp_path) == ["held", "mine"]
            other.kill()
            other.wait()
        with Store(tmp_path) as store:
            assert sorted(session.spec.id for session in store.recover()) == ["held", "mine"]


def test_a_kill_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    for kill_after in (1, 3, 10, 40, 90):
        with holder(tmp_path) as other:
            assert other.stdout is not None
            lines = [other.stdout.readline() for _ in range(kill_after)]
            other.kill()
            acknowledged += [int(line) for line in (*lines, *other.stdout.read().split())]
        with Store(tmp_path) as store:
            [session] = store.recover()
            assert len(session.records) - acknowledged[-1] in (1, 2)
            told = [int(record) for record in session.story]
            assert told == sorted(set(told))
            assert set(acknowledged) <= set(told)
            [run] = session.runs()
            data = Path(run.path).read_bytes()[run.start : run.stop]
            chunks = [data[at + run.header :][:400] for at in range(0, len(data), run.header + 400)]
            assert chunks == [number.to_bytes(4, "little") * 100 for number in range(len(session.records))]
