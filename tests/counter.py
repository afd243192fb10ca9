"""A real worker process without a model: `python -P tests/counter.py OPTION… FD`. It does what its jobs are called.

Options
    capacity=N              jobs at once (2)
    blocking                one step runs a whole job
    refuse | fail | error   at the start: Failed(model_not_configured) | exit status 3 | an exception
    noise | early           at the start: no frame at all | an answer before Ready
    log=PATH                appends a line `PID` for each start
    fail-first=N            with log: exits with status 3 in the first N starts
    gate=FIFO               at the start: reports Loading("held"), then waits until the FIFO is written to
    deaf                    says Ready and never reads: neither jobs nor the end of the stream

    admitted=PATH           appends a line for each job that it gets

Decode.source, or Transcribe.audio.path
    count:N      Progress for 1 … N, then Decoded(samples=N)
    flood:N      N Segments in one step, then Decoded(samples=N)
    hold         Progress once, then nothing, without keeping the engine busy
    doubt:N      N Doubts, the next when the last is answered, then Decoded(samples=answers that there is speech)
    fifo:PATH    Progress, then a step that lasts until the FIFO is written to, then Decoded
    once:PATH:…  what follows on it if there is no such file yet, which is then made; else count:3
    talk:N       N Segments, one in each step, then Decoded; talk:N:K:PATH: crashes after K of them, but only once
    hang         Progress, then a step that never ends
    crash        Progress, then SIGSEGV; exit:N ends with that status instead
    noise        Progress, then bytes that are no frame
    hangup       Progress, then the end of its stream, without ending itself
    chatter:N    prints N bytes without a line's end, then Decoded
    told         Decoded(samples=max_audio_seconds of the settings it was told)
    pid          Decoded(samples=its pid); spawn: of a child that sleeps and inherits what can be inherited
    refuse       InvalidValue out of admit
    bug          an exception out of admit; bug-step: Progress, then one out of step
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from protocol.errors import InvalidValue, ModelNotConfigured
from protocol.events import Decoded, Doubt, Loading, Progress, Ready, Segment
from protocol.jobs import Decode, Heard, Job, Transcribe
from protocol.settings import MediaSettings, Settings
from protocol.wire import frame
from workers import loop


class Task:
    """A job under way."""

    def __init__(self, word: str, argument: str, emit: loop.Emit) -> None:
        self.word = word
        self.argument = argument
        self.emit = emit
        self.done = 0
        self.heard: list[bool] = []

    def end(self, samples: int) -> None:
        self.emit(Decoded(samples=samples, decoder="soundfile", container="counter", elapsed_ms=0.0))


class Counter:
    """The engine. Its tasks take turns, one step of each at a time, unless it is blocking."""

    def __init__(self, capacity: int, blocking: bool, fd: int, settings: Settings, admitted: str = os.devnull) -> None:
        self._admitted = Path(admitted)
        self.blocking = blocking
        self._settings = settings
        self.ready = Ready(capacity=capacity)
        self._fd = fd
        self._tasks: list[Task] = []

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def admit(self, job: Job, emit: loop.Emit) -> Task:
        assert isinstance(job, Decode | Transcribe)
        source = job.source if isinstance(job, Decode) else job.audio.path
        assert source, "a job that the counter does not know"
        with self._admitted.open("a") as log:
            log.write(f"{source}\n")
        word, _, argument = source.partition(":")
        if word == "once":
            path, _, rest = argument.partition(":")
            word, _, argument = ("count:3" if Path(path).exists() else rest).partition(":")
            Path(path).touch()
        if word == "refuse":
            raise InvalidValue("this one is refused", param="file")
        if word == "bug":
            raise RuntimeError("a bug in admit")
        task = Task(word, argument, emit)
        if word == "hold":
            emit(Progress(done=0, total=1))
        elif word == "doubt":
            emit(Doubt(0, 1))
        else:
            self._tasks.append(task)
        return task

    def cancel(self, handle: Task) -> None:
        if handle in self._tasks:
            self._tasks.remove(handle)

    def answer(self, handle: Task, heard: Heard) -> None:
        handle.heard.append(heard.speech)
        number = len(handle.heard)
        if number < int(handle.argument):
            handle.emit(Doubt(number, number + 1))
        else:
            handle.end(sum(handle.heard))

    def step(self) -> None:
        for task in tuple(self._tasks):
            while self._work(task):
                if not self.blocking:
                    break
            else:
                self._tasks.remove(task)

    def _work(self, task: Task) -> bool:
        """One step of one task; whether there are more."""
        match task.word:
            case "count":
                task.done += 1
                task.emit(Progress(done=task.done, total=int(task.argument)))
                if task.done < int(task.argument):
                    return True
                task.end(task.done)
            case "flood":
                for number in range(int(task.argument)):
                    task.emit(Segment(number, number + 1, " word", (1, 2, 3), 0, 0.0, 0.0, 1.0, 0.0))
                task.end(int(task.argument))
            case "talk":
                return self._talk(task)
            case "fifo":
                task.emit(Progress(done=0, total=1))
                Path(task.argument).read_bytes()
                task.end(0)
            case "told":
                assert isinstance(self._settings, MediaSettings)
                task.end(int(self._settings.max_audio_seconds))
            case "pid":
                task.end(os.getpid())
            case "spawn":
                task.end(subprocess.Popen(["sleep", "60"], close_fds=False).pid)
            case "chatter":
                sys.stdout.write("x" * int(task.argument))
                sys.stdout.flush()
                task.end(0)
            case _:
                self._misbehave(task)
        return False

    def _talk(self, task: Task) -> bool:
        number, _, rest = task.argument.partition(":")
        last, _, path = rest.partition(":")
        if path and task.done == int(last) and not Path(path).exists():
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if task.done < int(number):
            task.emit(Segment(task.done, task.done + 1, f" word {task.done}", (1, 2, 3), 0, 0.0, 0.0, 1.0, 0.0))
            task.done += 1
            return True
        task.end(task.done)
        return False

    def _misbehave(self, task: Task) -> None:
        task.emit(Progress(done=0, total=1))
        match task.word:
            case "hang":
                threading.Event().wait()
            case "crash":
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exit":
                os._exit(int(task.argument))
            case "noise":
                os.write(self._fd, b"Loading weights: 100%\n")
            case "hangup":
                # The service hangs up in its turn, at which the reader would end the process.
                setattr(os, "_exit", lambda status: threading.Event().wait())  # noqa: B010
                with socket.socket(fileno=os.dup(self._fd)) as link:
                    link.shutdown(socket.SHUT_WR)
                threading.Event().wait()
            case "bug-step":
                raise RuntimeError("a bug in step")
            case word:
                raise AssertionError(f"no job is called {word!r}")


def main(options: list[str], fd: int) -> None:
    named = dict(option.partition("=")[::2] for option in options)
    starts = 0
    if "log" in named:
        with Path(named["log"]).open("a+") as log:
            log.write(f"{os.getpid()}\n")
        starts = len(Path(named["log"]).read_text().splitlines())

    def build(settings: Settings, report: loop.Report) -> Counter:
        report(Loading("counting up"))
        if "refuse" in named:
            raise ModelNotConfigured("there is no model; get one", retry=False)
        if "fail" in named or starts <= int(named.get("fail-first", -1)):
            os._exit(3)
        if "error" in named:
            raise RuntimeError("a bug in build")
        if "noise" in named:
            os.write(fd, b"Loading weights: 100%\n")
        if "early" in named:
            os.write(fd, frame(1, Progress(done=0, total=0)))
        if "gate" in named:
            report(Loading("held", done=1, total=2))
            Path(named["gate"]).read_bytes()
        admitted = named.get("admitted", os.devnull)
        return Counter(int(named.get("capacity", 2)), "blocking" in named, fd, settings, admitted)

    os.dup2(2, 1)
    if "deaf" in named:
        os.write(fd, frame(0, Ready(capacity=2)))
        threading.Event().wait()
    loop.serve(fd, build)


if __name__ == "__main__":
    main(sys.argv[1:-1], int(sys.argv[-1]))
