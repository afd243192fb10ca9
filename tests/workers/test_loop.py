"""The worker's loop: over a scripted engine with a queue and a list, and as a process over a real socket."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

import workers.__main__ as main
from protocol.errors import InvalidValue, Kind
from protocol.events import Decoded, Failed, FromWorker, Loading, Progress, Ready
from protocol.jobs import Cancel, Decode, Heard, Job
from protocol.lines import REQUESTS, Formatter
from protocol.settings import MediaSettings, OracleSettings, Settings, WhisperSettings
from protocol.wire import Codec, frame
from workers.loop import Emit, Inbox, is_shortage, run

MEDIA = MediaSettings()
ROOT = Path(__file__).parents[2]
DONE = Decoded(samples=1, decoder="soundfile", container="test", elapsed_ms=0.0)
CANCELLED = Failed(kind=Kind.REQUEST_CANCELLED, message="the request was cancelled")
INTERNAL = Failed(kind=Kind.INTERNAL_ERROR, message="the worker met an error of its own; its log has the details")


class Scripted:
    """An engine whose step ends one job, in the order of admission, after doing what `within` says."""

    ready = Ready(capacity=4)

    def __init__(self, *, blocking: bool = False, within: Callable[[], None] = lambda: None) -> None:
        self.blocking = blocking
        self.did: list[str] = []
        self._within = within
        self._jobs: list[tuple[str, Emit]] = []

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def admit(self, job: Job, emit: Emit) -> str:
        assert isinstance(job, Decode)
        self.did.append(f"admit {job.source}")
        match job.source:
            case "refused":
                raise InvalidValue("not this one", param="file", retry=False)
            case "bug":
                raise RuntimeError("a bug in admit")
            case "no memory":
                raise MemoryError
            case "at once":
                emit(DONE)
            case _:
                self._jobs.append((job.source, emit))
        return job.source

    def cancel(self, handle: str) -> None:
        self.did.append(f"cancel {handle}")
        self._jobs = [job for job in self._jobs if job[0] != handle]

    def answer(self, handle: str, heard: Heard) -> None:
        self.did.append(f"answer {handle} {heard.speech}")

    def step(self) -> None:
        name, emit = self._jobs.pop(0)
        self.did.append(f"step {name}")
        self._within()
        emit(DONE)
        emit(Progress(done=9, total=9))


def decode(source: str) -> Decode:
    return Decode(source=source, target="")


def answers(engine: Scripted, *frames: tuple[int, Job | Heard | Cancel]) -> list[tuple[int, FromWorker]]:
    """What the loop sends when these frames are all there from the start."""
    inbox, sent = Inbox(), list[tuple[int, FromWorker]]()
    for each in frames:
        assert inbox.put(*each)
    inbox.close()
    run(engine, inbox, sent.append)
    return sent


def test_all_waiting_frames_are_taken_before_a_step() -> None:
    engine = Scripted()
    inbox, sent = Inbox(), list[tuple[int, FromWorker]]()
    inbox.put(1, decode("a"))
    inbox.put(2, decode("b"))
    engine._within = lambda: inbox.close() if not engine.busy else None
    run(engine, inbox, sent.append)
    assert engine.did == ["admit a", "admit b", "step a", "step b"]
    assert sent == [(1, DONE), (2, DONE)]


def test_a_refusal_becomes_failed_with_all_its_parts() -> None:
    assert answers(Scripted(), (1, decode("refused"))) == [
        (1, Failed(kind=Kind.INVALID_VALUE, message="not this one", param="file", retry=False))
    ]


def test_a_bug_in_admit_is_logged_and_fails_that_job_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert answers(Scripted(), (1, decode("bug")), (2, decode("at once"))) == [(1, INTERNAL), (2, DONE)]
    assert "RuntimeError: a bug in admit" in capsys.readouterr().err


def test_what_is_logged_is_about_the_requests_of_the_jobs_in_hand() -> None:
    named: list[tuple[str, ...]] = []
    engine, inbox = Scripted(), Inbox()

    def within() -> None:
        named.append(REQUESTS.get())
        if not engine.busy:
            inbox.close()

    engine._within = within
    for job, (name, request) in enumerate((("a", "r-1"), ("b", "r-2"), ("c", "")), 1):
        inbox.put(job, msgspec.structs.replace(decode(name), request=request))
    run(engine, inbox, lambda _: None)
    assert named == [("r-1", "r-2"), ("r-2",), ()]


def test_a_bug_in_admit_names_the_request_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("ERROR"):
        caplog.handler.setFormatter(Formatter())
        answers(Scripted(), (1, msgspec.structs.replace(decode("bug"), request="r-1")), (2, decode("at once")))
    assert caplog.text.startswith("ERROR workers.loop [r-1]: a bug")


def test_a_bug_in_a_step_fails_no_job_says_that_the_end_is_near_and_is_raised() -> None:
    def bug() -> None:
        raise RuntimeError("a bug in step")

    inbox, sent = Inbox(), list[tuple[int, FromWorker]]()
    inbox.put(1, decode("a"))
    inbox.put(2, decode("b"))
    with pytest.raises(RuntimeError, match="a bug in step"):
        run(Scripted(within=bug), inbox, sent.append)
    assert sent == [(0, INTERNAL)]


def test_without_memory_no_job_is_refused_but_the_process_ends() -> None:
    inbox, sent = Inbox(), list[tuple[int, FromWorker]]()
    inbox.put(1, decode("no memory"))
    with pytest.raises(MemoryError):
        run(Scripted(), inbox, sent.append)
    assert sent == [(0, INTERNAL)]


@pytest.mark.parametrize(
    ("error", "shortage"),
    [
        (MemoryError(), True),
        (RuntimeError("[malloc] Unable to allocate 1048576 bytes."), True),
        (RuntimeError("can't start new thread"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (ImportError("numpy/random/_bounded_integers.so: failed to map segment from shared object"), True),
        (ImportError("No module named 'x'"), False),
        (RuntimeError("shapes do not fit"), False),
        (OSError(errno.ENOENT, "No such file"), False),
    ],
)
def test_a_lack_of_memory_has_many_words(error: Exception, shortage: bool) -> None:
    assert is_shortage(error) is shortage


def test_steps_that_answer_nothing_are_followed_by_a_sign_of_life() -> None:
    def pause() -> None:
        time.sleep(0.05)
        if not engine.busy:
            inbox.close()

    engine, inbox, sent = Scripted(within=pause), Inbox(), list[tuple[int, FromWorker]]()
    inbox.put(1, decode("a"))
    inbox.put(2, decode("b"))
    engine._jobs.insert(0, ("silent", lambda event: None))
    engine._jobs.insert(1, ("silent", lambda event: None))
    run(engine, inbox, sent.append, life_s=0.08)
    # The first step came too early for it, and the answers of the last two are life enough.
    assert sent == [(0, Progress(done=0, total=0)), (1, DONE), (2, DONE)]


def test_memory_is_given_back_once_whenever_there_has_been_no_job_for_a_while() -> None:
    engine, inbox, rests = Scripted(), Inbox(), list[list[str]]()

    def rest() -> None:
        rests.append(list(engine.did))
        if len(rests) == 1:
            inbox.put(2, decode("b"))
        else:
            inbox.close()

    inbox.put(1, decode("a"))
    run(engine, inbox, lambda _: None, rest=rest, rest_s=0.01)
    assert rests == [["admit a", "step a"], ["admit a", "step a", "admit b", "step b"]]


def test_who_has_had_no_job_has_nothing_to_give_back() -> None:
    inbox = Inbox()
    threading.Timer(0.05, inbox.close).start()
    run(Scripted(), inbox, lambda _: None, rest=lambda: pytest.fail("there was no job"), rest_s=0.001)


def test_nothing_follows_a_terminal_event() -> None:
    engine, inbox, sent = Scripted(), Inbox(), list[tuple[int, FromWorker]]()
    engine._within = inbox.close
    inbox.put(1, decode("a"))
    run(engine, inbox, sent.append)
    assert sent == [(1, DONE)]


def test_a_cancelled_job_is_answered_and_never_stepped() -> None:
    engine = Scripted()
    assert answers(engine, (1, decode("a")), (1, Cancel())) == [(1, CANCELLED)]
    assert engine.did == ["admit a", "cancel a"]


def test_cancelling_what_is_unknown_or_over_does_nothing() -> None:
    engine = Scripted()
    assert answers(engine, (7, Cancel()), (1, decode("at once")), (1, Cancel()), (1, Cancel())) == [(1, DONE)]
    assert engine.did == ["admit at once"]


def test_an_answer_goes_to_the_job_that_asked() -> None:
    engine = Scripted()
    assert answers(engine, (1, decode("a")), (2, decode("b")), (2, Heard(True)), (1, Cancel()), (2, Cancel())) == [
        (1, CANCELLED),
        (2, CANCELLED),
    ]
    assert engine.did == ["admit a", "admit b", "answer b True", "cancel a", "cancel b"]


def test_an_answer_for_a_job_that_is_unknown_refused_or_over_goes_nowhere() -> None:
    engine = Scripted()
    frames = (7, Heard(True)), (1, decode("at once")), (1, Heard(True)), (2, decode("refused")), (2, Heard(False))
    answers(engine, *frames)
    assert engine.did == ["admit at once", "admit refused"]


def test_a_cancel_during_a_blocking_step_is_handed_back_to_the_reader() -> None:
    inbox, sent, kept = Inbox(), list[tuple[int, FromWorker]](), list[bool]()

    def within() -> None:
        kept.extend([inbox.put(1, Cancel()), inbox.put(2, decode("b")), inbox.put(2, Cancel())])
        inbox.close()

    inbox.put(1, decode("a"))
    run(Scripted(blocking=True, within=within), inbox, sent.append)
    assert kept == [False, True, True]


def test_a_cancel_during_a_step_that_does_not_block_waits_for_its_end() -> None:
    inbox, sent = Inbox(), list[tuple[int, FromWorker]]()

    def within() -> None:
        assert inbox.put(2, Cancel())
        inbox.close()

    inbox.put(1, decode("a"))
    inbox.put(2, decode("b"))
    run(Scripted(within=within), inbox, sent.append)
    assert sent == [(1, DONE), (2, CANCELLED)]


def test_a_cancel_after_the_terminal_event_of_a_blocking_step_is_late_and_harmless() -> None:
    inbox, kept = Inbox(), list[bool]()

    def send(answer: tuple[int, FromWorker]) -> None:
        if answer == (1, DONE):  # Its reader leaves on hearing it, while the step still runs.
            kept.append(inbox.put(1, Cancel()))
            inbox.close()

    inbox.put(1, decode("a"))
    run(Scripted(blocking=True), inbox, send)
    assert kept == [True]


def test_a_step_does_not_begin_once_a_frame_is_there() -> None:
    inbox = Inbox()
    inbox.put(1, Cancel())
    assert not inbox.begin_step([1])
    assert inbox.take(wait=False) == (1, Cancel())
    assert inbox.begin_step([1])
    assert not inbox.put(1, Cancel())
    inbox.end_step()
    assert inbox.put(1, Cancel())


class Peer:
    """The service's end of a worker process's pipe."""

    def __init__(self, link: socket.socket, process: subprocess.Popen[str]) -> None:
        self.link = link
        self.process = process
        self._pipe: BinaryIO = link.makefile("rb")
        self._codec = Codec[FromWorker](FromWorker)

    def send(self, number: int, message: msgspec.Struct) -> None:
        self.link.sendall(frame(number, message))

    def read(self) -> tuple[int, FromWorker] | None:
        return self._codec.read(self._pipe)

    def ended(self) -> tuple[int, str]:
        """Exit status and standard error."""
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@contextmanager
def worker(*command: str, settings: Settings | None = MEDIA) -> Iterator[Peer]:
    ours, theirs = socket.socketpair()
    with (
        ours,
        subprocess.Popen(
            [sys.executable, "-P", *command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT)},
        ) as process,
    ):
        theirs.close()
        ours.settimeout(60)
        peer = Peer(ours, process)
        try:
            if settings is not None:
                peer.send(0, settings)
            yield peer
        finally:
            peer._pipe.close()
            process.kill()


COUNTER = str(ROOT / "tests" / "counter.py")


def test_a_process_reports_loading_then_ready_then_events_and_leaves_at_the_end_of_the_stream() -> None:
    with worker(COUNTER) as peer:
        assert peer.read() == (0, Loading("counting up"))
        assert peer.read() == (0, Ready(capacity=2))
        peer.send(5, decode("count:1"))
        assert peer.read() == (5, Progress(done=1, total=1))
        assert peer.read() == (5, Decoded(samples=1, decoder="soundfile", container="counter", elapsed_ms=0.0))
        peer.link.shutdown(socket.SHUT_WR)
        assert peer.ended() == (0, "")


def test_a_refusal_to_start_is_said_as_job_0() -> None:
    with worker(COUNTER, "refuse") as peer:
        peer.read()
        assert peer.read() == (
            0,
            Failed(kind=Kind.MODEL_NOT_CONFIGURED, message="there is no model; get one", retry=False),
        )
        assert peer.read() is None
        assert peer.ended() == (0, "")


def test_any_other_error_at_the_start_ends_with_status_1_and_a_traceback() -> None:
    with worker(COUNTER, "error") as peer:
        peer.read()
        assert peer.read() is None
        status, errors = peer.ended()
        assert (status, "RuntimeError: a bug in build" in errors) == (1, True)


@pytest.mark.parametrize("options", [["blocking"], []])
def test_the_end_of_the_stream_ends_a_process_within_a_step(options: list[str]) -> None:
    with worker(COUNTER, *options) as peer:
        peer.read(), peer.read()
        peer.send(1, decode("hang"))
        assert peer.read() == (1, Progress(done=0, total=1))
        began = time.monotonic()
        peer.link.shutdown(socket.SHUT_WR)
        assert peer.ended() == (0, "")
        assert time.monotonic() - began < 5


def test_cancelling_a_blocking_job_ends_the_process_with_its_own_status() -> None:
    with worker(COUNTER, "blocking") as peer:
        peer.read(), peer.read()
        peer.send(1, decode("hang"))
        peer.read()
        peer.send(2, decode("count:1"))
        peer.send(2, Cancel())
        peer.send(9, Cancel())
        peer.send(1, Cancel())
        assert peer.read() is None
        assert peer.ended() == (86, "")


@pytest.mark.parametrize("noise", [b"\x00\x00\x00\x04nope", b"\xff\xff\xff\xff", frame(1, Ready(capacity=1))])
def test_a_garbled_frame_ends_a_process(noise: bytes) -> None:
    with worker(COUNTER) as peer:
        peer.read(), peer.read()
        peer.link.sendall(noise)
        assert peer.read() is None
        status, errors = peer.ended()
        assert (status, "FrameError" in errors) == (1, True)


def test_a_process_without_settings_leaves_quietly() -> None:
    with worker("-m", "workers", settings=None) as peer:
        peer.link.shutdown(socket.SHUT_WR)
        assert peer.ended() == (0, "")


def test_the_real_worker_picks_the_media_engine_and_prints_nothing_on_stdout() -> None:
    with worker("-m", "workers") as peer:
        frames = iter(peer.read, None)
        ready = next(answer for answer in frames if not isinstance(answer[1], Loading))
        assert isinstance(ready[1], Ready), ready
        peer.link.shutdown(socket.SHUT_WR)
        assert peer.process.communicate(timeout=20)[0] == ""
        assert peer.process.returncode == 0


def test_every_kind_of_settings_has_an_engine() -> None:
    assert set(main.ENGINES) == set(Settings.__args__)


def test_ps_shows_what_a_worker_is() -> None:
    assert main.title(MediaSettings()) == "starling: media"
    assert main.title(WhisperSettings(model="owner/whisper-base", data_dir="")) == "starling: whisper whisper-base"
    assert main.title(OracleSettings(model="/models/whisper-base", data_dir="")) == "starling: oracle whisper-base"
