"""A journal on a real disk, on one that is full, and after a kill at any point."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from protocol.errors import DiskFull
from protocol.jobs import Raw, Run
from service import disk
from service.dictation.chunk import Chunk
from service.dictation.frames import HEADER_BYTES, MARK
from service.dictation.journal import SILENCE, Journal, Received

S16 = Raw("s16le", 16_000, 1)
STEREO = Raw("s16be", 48_000, 2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "session"
    made.mkdir()
    (made / "audio").write_bytes(MARK)
    return made


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    opened = Journal(folder)
    yield opened
    opened.close()


def received(folder: Path, data: bytes) -> Received:
    path = folder / "received-1"
    path.write_bytes(data)
    return Received(path, folder / "received-1.pcm", len(data))


def heard(run: Run) -> bytes:
    """The audio of a run, as a worker reads it."""
    data, found = Path(run.path).read_bytes()[run.start : run.stop], b""
    if not run.header:
        return data
    while data:
        (length,) = struct.unpack_from("<I", data)
        found += data[run.header : run.header + length]
        data = data[run.header + length :]
    return found


Contents = tuple[list[int], list[tuple[Raw | None, bytes]]]


def contents(journal: Journal) -> Contents:
    return [record.samples for record in journal.records], [(run.raw, heard(run)) for run in journal.runs()]


def reread(folder: Path) -> Contents:
    """What a service finds after a restart."""
    with closing(Journal(folder)) as found:
        return contents(found)


async def test_chunks_of_one_format_are_one_run_without_their_headers(journal: Journal) -> None:
    for number, data in enumerate([b"ab", b"cdef", b"", b"gh"]):
        await journal.append(Chunk(S16, data), number)
    [run] = journal.runs()
    assert (run.raw, run.header, heard(run)) == (S16, HEADER_BYTES, b"abcdefgh")
    assert [record.samples for record in journal.records] == [1, 3, 3, 4]


async def test_another_format_is_another_run_whose_samples_are_counted_as_a_whole(journal: Journal) -> None:
    await journal.append(Chunk(S16, bytes(200)))
    for _ in range(3):
        await journal.append(Chunk(STEREO, bytes(4)))
    await journal.append(Chunk(S16, bytes(2)))
    # 100 samples, then three frames at 48 kHz, which are one sample at 16 kHz however they were cut, then one more.
    assert [record.samples for record in journal.records] == [100, 100, 101, 101, 102]
    assert [run.raw for run in journal.runs()] == [S16, STEREO, S16]
    assert [run.raw for run in journal.runs(1)] == [STEREO, S16]
    assert journal.after(Chunk(S16, bytes(8))) == 106
    assert journal.after(Chunk(STEREO, bytes(12))) == 103
    assert journal.after(Chunk(STEREO, b"")) == 102


async def test_a_file_is_a_run_of_its_own(journal: Journal, folder: Path) -> None:
    await journal.append(Chunk(S16, b"ab"))
    await journal.append(received(folder, b"RIFF"), 1, 1000)
    await journal.append(Chunk(S16, b"cd"))
    assert contents(journal) == ([1, 1001, 1002], [(S16, b"ab"), (None, b"RIFF"), (S16, b"cd")])
    assert not (folder / "received-1").exists()


async def test_a_number_that_is_not_the_next_is_a_mistake_of_ours(journal: Journal) -> None:
    with pytest.raises(ValueError, match="chunk 1 where 0 is the next"):
        await journal.append(Chunk(S16, b"ab"), 1)


async def test_chunks_that_come_at_once_are_one_after_the_other(journal: Journal) -> None:
    await asyncio.gather(*(journal.append(Chunk(S16, bytes([number] * 2))) for number in range(20)))
    assert contents(journal) == (list(range(1, 21)), [(S16, bytes(n for n in range(20) for _ in range(2)))])


async def test_everything_is_there_after_a_restart(journal: Journal, folder: Path) -> None:
    for raw in (S16, S16, STEREO, S16):
        await journal.append(Chunk(raw, bytes(range(32))))
    await journal.append(received(folder, b"RIFF"), 4, 1000)
    await journal.append(Chunk(S16, b""))
    await journal.append(Chunk(STEREO, bytes(4)))
    with closing(Journal(folder)) as found:
        assert contents(found) == contents(journal)
        for chunk in (Chunk(S16, bytes(4)), Chunk(STEREO, bytes(8))):
            assert found.after(chunk) == journal.after(chunk)
        assert found.size == journal.size


async def test_a_file_that_is_no_journal_is_said_to_be_none(folder: Path) -> None:
    (folder / "audio").write_bytes(b"RIFF")
    with pytest.raises(ValueError, match="audio does not begin as one"):
        Journal(folder)


async def test_the_bytes_are_on_the_disk_before_append_returns(
    journal: Journal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safe = 0

    def sync(descriptor: int) -> None:
        nonlocal safe
        real(descriptor)
        safe = os.fstat(descriptor).st_size

    real = disk.sync
    monkeypatch.setattr("service.dictation.growing.sync", sync)
    await journal.append(Chunk(S16, b"abcd"))
    assert safe == len(MARK) + HEADER_BYTES + 4 == (folder / "audio").stat().st_size


async def kept(folder: Path) -> list[tuple[int, Contents]]:
    """A journal of chunks of all kinds: at first and after each, the file's size and what it holds."""
    sent: list[Chunk | Received] = [
        Chunk(S16, bytes(range(1, 21))),
        Chunk(S16, b""),
        Chunk(STEREO, bytes(range(1, 9))),
        received(folder, b"RIFF"),
        Chunk(S16, bytes(6)),
        Chunk(S16, b"\xff" * 40),
    ]
    with closing(Journal(folder)) as journal:
        states = [(len(MARK), contents(journal))]
        for chunk in sent:
            await journal.append(chunk, samples=700 if isinstance(chunk, Received) else None)
            states.append(((folder / "audio").stat().st_size, contents(journal)))
    return states


def damaged(whole: bytes, at: int) -> Iterator[bytes]:
    """What may be there of a file after its first `at` bytes are safe: a cut, and pages that never came or are old."""
    yield whole[:at]
    yield whole[:at] + bytes(len(whole) - at)
    yield whole[:at] + bytes(byte ^ 0x55 for byte in whole[at:]) + bytes(1 << 13)


async def test_after_a_kill_at_any_byte_all_that_was_acknowledged_is_there_and_nothing_in_part(folder: Path) -> None:
    states = await kept(folder)
    whole = (folder / "audio").read_bytes()
    sizes = [size for size, _ in states]
    for at in range(len(MARK), len(whole) + 1):
        acknowledged = max(number for number, size in enumerate(sizes) if size <= at)
        for data in damaged(whole, at):
            (folder / "audio").write_bytes(data)
            found = reread(folder)
            # Bytes that never came may be zeros as they should be: then a chunk more is there, and a whole one.
            assert found in [state for _, state in states[acknowledged:]]
            assert (folder / "audio").stat().st_size == sizes[len(found[0])]


async def test_a_chunk_whose_header_came_to_the_disk_before_its_bytes_is_none(folder: Path) -> None:
    states = await kept(folder)
    whole = (folder / "audio").read_bytes()
    (folder / "audio").write_bytes(whole[:-40] + bytes(40))
    assert reread(folder) == states[-2][1]


async def test_a_journal_that_was_torn_goes_on(folder: Path) -> None:
    states = await kept(folder)
    whole = (folder / "audio").read_bytes()
    for at in range(states[-2][0], len(whole)):
        (folder / "audio").write_bytes(whole[:at] + b"torn" * 100)
        with closing(Journal(folder)) as torn:
            await torn.append(Chunk(S16, b"more"))
            assert contents(torn)[1][-1] == (S16, bytes(6) + b"more")
            assert reread(folder) == contents(torn)


async def test_a_byte_that_the_disk_changed_long_ago_costs_no_other(folder: Path) -> None:
    states = await kept(folder)
    data = bytearray((folder / "audio").read_bytes())
    data[len(MARK) + HEADER_BYTES] ^= 1
    (folder / "audio").write_bytes(data)
    assert reread(folder)[0] == states[-1][1][0]


def spoilt(folder: Path, first: int, last: int) -> None:
    """The bytes from `first` to `last` of a journal are no longer what they were."""
    data = bytearray((folder / "audio").read_bytes())
    data[first:last] = bytes(byte ^ 0xA5 for byte in data[first:last])
    (folder / "audio").write_bytes(data)


@pytest.mark.parametrize("number", [0, 3, 4])
async def test_a_header_that_the_disk_spoilt_is_made_again_and_said_so(
    folder: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    states = await kept(folder)
    whole = (folder / "audio").read_bytes()
    spoilt(folder, states[number][0], states[number][0] + HEADER_BYTES)
    assert reread(folder) == states[-1][1]
    assert f"chunk {number} was damaged and is made again" in caplog.text
    assert (folder / "audio").read_bytes() == whole


@pytest.mark.parametrize("number", [1, 2])
async def test_a_chunk_of_an_unknown_format_costs_itself_alone(
    folder: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    states = await kept(folder)
    spoilt(folder, states[number][0], states[number][0] + HEADER_BYTES)
    samples, runs = reread(folder)
    assert f"chunks {number} to {number} are damaged" in caplog.text
    assert samples[:number] + samples[3:] == states[-1][1][0][:number] + states[-1][1][0][3:]
    assert runs == [run for run in states[-1][1][1] if number == 1 or run[0] != STEREO]


async def test_headers_that_cannot_be_made_again_leave_silence_and_all_else_in_its_place(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Journal(folder)) as journal:
        for number in range(6):
            await journal.append(Chunk(S16, bytes([number + 1]) * 20))
    size = HEADER_BYTES + 20
    spoilt(folder, len(MARK) + 2 * size, len(MARK) + 4 * size)
    for _ in range(2):
        with closing(Journal(folder)) as found:
            assert [record.samples for record in found.records] == [10, 20, 40, 40, 50, 60]
            runs = [(run.raw, heard(run)) for run in found.runs()]
            assert runs == [(S16, b"\1" * 20 + b"\2" * 20), (SILENCE, bytes(40)), (S16, b"\5" * 20 + b"\6" * 20)]
        assert "chunks 2 to 3 are damaged" in caplog.text
    with closing(Journal(folder)) as found:
        await found.append(Chunk(S16, b"more"), 6)
        assert contents(found)[1][-1] == (S16, b"\5" * 20 + b"\6" * 20 + b"more")
    assert reread(folder)[0][-1] == 62


async def test_a_torn_end_is_no_damage(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    await kept(folder)
    whole = (folder / "audio").read_bytes()
    (folder / "audio").write_bytes(whole[:-1])
    reread(folder)
    assert [record.levelname for record in caplog.records] in ([], ["INFO"])


Break = Callable[[pytest.MonkeyPatch], None]


def no_room(number: int, after: int) -> Break:
    """Writing fails with this number after some bytes."""

    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.pwrite
        written = 0

        def pwrite(descriptor: int, data: memoryview, at: int) -> int:
            nonlocal written
            if written >= after:
                raise OSError(number, os.strerror(number))
            written += (done := real(descriptor, data[: after - written], at))
            return done

        monkeypatch.setattr(os, "pwrite", pwrite)

    return broken


def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk did not take it")

    monkeypatch.setattr("service.dictation.growing.sync", sync)


def neither_room_nor_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def ftruncate(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "nor does it shrink")

    no_room(errno.ENOSPC, 30)(monkeypatch)
    monkeypatch.setattr(os, "ftruncate", ftruncate)


FAILURES = [
    (no_room(errno.ENOSPC, 0), DiskFull),
    (no_room(errno.ENOSPC, 1), DiskFull),
    (no_room(errno.EDQUOT, HEADER_BYTES - 1), DiskFull),
    (no_room(errno.EIO, 3), OSError),
    (no_sync, OSError),
    (neither_room_nor_cut, DiskFull),
]


@pytest.mark.parametrize(
    ("broken", "error", "file"),
    [(broken, error, file) for broken, error in FAILURES for file in (False, True)]
    + [(no_room(errno.ENOSPC, HEADER_BYTES + more), DiskFull, False) for more in (0, 5)],
)
async def test_a_chunk_that_finds_no_room_leaves_all_as_it_was(
    broken: Break, error: type[Exception], file: bool, folder: Path
) -> None:
    states = await kept(folder)
    chunk = received(folder, b"MORE") if file else Chunk(S16, bytes(100))
    with closing(Journal(folder)) as journal:
        with pytest.MonkeyPatch.context() as patched, pytest.raises(error):
            broken(patched)
            await journal.append(chunk, samples=5 if file else None)
        assert contents(journal) == states[-1][1]
        assert not (folder / "6.file").exists()
        await journal.append(Chunk(S16, b"more"))
        assert contents(journal)[1][-1] == (S16, bytes(6) + b"\xff" * 40 + b"more")
        assert reread(folder) == contents(journal)


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file of this process may be longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_limit_of_the_system_is_a_full_disk(journal: Journal, folder: Path) -> None:
    await journal.append(Chunk(S16, bytes(100_000)))
    before = contents(journal)
    with pytest.raises(DiskFull), file_limit(150_000):
        await journal.append(Chunk(S16, bytes(100_000)))
    assert contents(journal) == before == reread(folder)
    await journal.append(Chunk(S16, bytes(100_000)))
    assert reread(folder)[0] == [50_000, 100_000]


async def test_a_caller_that_is_cancelled_leaves_a_whole_chunk_or_none(
    journal: Journal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Event(), threading.Event()

    def sync(descriptor: int) -> None:
        writing.set()
        assert go_on.wait(10)

    monkeypatch.setattr("service.dictation.growing.sync", sync)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(journal.append(Chunk(S16, b"ab"), 0))
        await asyncio.to_thread(writing.wait, 10)
        first.cancel()
        second = group.create_task(journal.append(Chunk(S16, b"cd"), 1))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not first.done()
        go_on.set()
    assert first.cancelled()
    assert second.done()
    assert contents(journal) == reread(folder) == ([1, 2], [(S16, b"abcd")])


async def test_a_closed_journal_takes_nothing(journal: Journal) -> None:
    journal.close()
    with pytest.raises(OSError, match="audio was closed"):
        await journal.append(Chunk(S16, b"ab"))


async def test_memory_and_disk_per_chunk_are_small(journal: Journal, folder: Path, tmp_path: Path) -> None:
    for _ in range(50):
        await journal.append(Chunk(S16, b"ab"))
    assert len(journal.runs()) == 1
    assert (folder / "audio").stat().st_size == len(MARK) + 50 * (HEADER_BYTES + 2)
    shutil.copytree(folder, tmp_path / "moved")
    # Names in it are the folder's own: a data directory may move.
    assert reread(tmp_path / "moved") == contents(journal)
