"""Dictations at the hands of somebody who does everything in any order, while workers are killed: a state machine.

`python -m tests.e2e.machine [--seconds N] [--seed N]` is the long run. Knows what docs/dictation.md promises and keeps
its own account of what was acknowledged; knows nothing of how a session works.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.e2e.server import Server, serving, until
from tests.speech import Samples, timeline

PATH = "/v1/audio/sessions"
S16 = "audio/pcm;encoding=s16le"
SIZES = (1, 2, 511, 512, 1600, 4001, 16_000, 48_000)
"""Samples of a chunk."""
MOST = 3
"""Sessions at a time."""
KILLS = 2
"""In one run of the machine: a process that dies without having done anything is started again later and later."""
PATIENCE_S = 100.0
PEEK_S = 0.3
"""For the events of a session that goes on."""

Event = dict[str, Any]


@dataclass
class Account:
    """What one session has acknowledged and told."""

    url: str
    segmentation: str
    answers: list[Event] = field(default_factory=list)
    events: dict[int, Event] = field(default_factory=dict)
    text: str | None = None

    @property
    def samples(self) -> int:
        return int(self.answers[-1]["samples"]) if self.answers else 0


@dataclass
class House:
    """What the machines of one run share."""

    server: Server
    client: httpx.Client
    spoken: Samples
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    """What undisturbed sessions of so many samples said."""
    done: Counter[str] = field(default_factory=Counter)

    def ask(self, method: str, url: str, **request: Any) -> httpx.Response:
        """The answer, however often it takes: 429 and 503 say when to come back. Never a 500."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.client.request(method, url, **request)
            self.done[f"{answer.status_code}"] += 1
            assert answer.status_code in (200, 201, 204, 404, 409, 429, 503), f"{method} {url}: {answer.text}"
            if answer.status_code not in (429, 503):
                return answer
            assert answer.headers.get("x-should-retry") != "false" and time.monotonic() < deadline, answer.text
            time.sleep(int(answer.headers["retry-after-ms"]) / 1000)

    def begin(self, segmentation: str, partials: bool = False) -> Account:
        made = self.ask("POST", PATH, json={"segmentation": segmentation, "partials": partials})
        assert made.status_code == 201
        return Account(made.headers["location"], segmentation)

    def send(self, account: Account, number: int, samples: Samples) -> httpx.Response:
        headers = {"content-type": S16, "x-starling-seq": str(number)}
        return self.ask("POST", f"{account.url}/audio", content=samples.astype("<i2").tobytes(), headers=headers)

    def undisturbed(self, segmentation: str, samples: int) -> str:
        """The text of a session that gets the same audio at once."""
        if (segmentation, samples) not in self.texts:
            account = self.begin(segmentation)
            for number, start in enumerate(range(0, samples, 16_000)):
                assert self.send(account, number, self.heard(start, min(start + 16_000, samples))).status_code == 200
            self.texts[segmentation, samples] = self.ask("POST", f"{account.url}/finish").json()["text"]
            self.ask("DELETE", account.url)
        return self.texts[segmentation, samples]

    def heard(self, start: int, stop: int) -> Samples:
        """The same speech for every session, over and over."""
        return self.spoken.take(range(start, stop), mode="wrap")

    def read(self, account: Account, after: int | None) -> list[tuple[int, Event]]:
        """The kept events after one, as far as they come soon; all of them where the session has ended."""
        headers = {} if after is None else {"last-event-id": str(after)}
        found, ended = list[tuple[int, Event]](), account.text is not None
        timeout = httpx.Timeout(PATIENCE_S, read=PATIENCE_S if ended else PEEK_S)
        try:
            with self.client.stream("GET", f"{account.url}/events", headers=headers, timeout=timeout) as stream:
                assert stream.status_code in (200, 204), stream.status_code
                found.extend(_kept(stream.iter_lines()))
        except httpx.ReadTimeout:
            assert not ended, "the events of a session that has ended do not end"
        return found


def _kept(lines: Iterator[str]) -> Iterator[tuple[int, Event]]:
    """Events that have an id. One that a timeout cuts is not there yet."""
    number: int | None = None
    data = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            data = value
        elif not line:
            if number is not None and data:
                yield number, json.loads(data)
            number, data = None, ""


class Dictations(RuleBasedStateMachine):
    """Whatever comes first: what was acknowledged is there, numbers only grow, nothing is told twice or otherwise."""

    house: House

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Account] = []
        self.kills = 0

    @precondition(lambda self: len(self.open) < MOST)
    @rule(segmentation=st.sampled_from(("vad", "vad", "window")), partials=st.booleans())
    def create(self, segmentation: str, partials: bool) -> None:
        self.open.append(self.house.begin(segmentation, partials))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, MOST), sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4))
    def chunks(self, which: int, sizes: list[int]) -> None:
        account = self._one(which)
        for size in sizes:
            number, start = len(account.answers), account.samples
            answer = self.house.send(account, number, self.house.heard(start, start + size))
            if account.text is not None:
                assert answer.status_code == 409, answer.text
                return
            assert answer.status_code == 200, answer.text
            account.answers.append(answer.json())
            assert account.answers[-1]["seq"] == number and account.samples == start + size

    @precondition(lambda self: any(each.answers for each in self.open))
    @rule(which=st.integers(0, MOST), back=st.integers(0, 10), size=st.sampled_from(SIZES))
    def again(self, which: int, back: int, size: int) -> None:
        """Whatever it holds this time, a number that was taken gets its answer."""
        account = self._one(which)
        if account.answers:
            number = max(0, len(account.answers) - 1 - back)
            answer = self.house.send(account, number, self.house.heard(7, 7 + size))
            assert (answer.status_code, answer.json()) == (200, account.answers[number])

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, MOST), gap=st.integers(1, 3))
    def leave_out(self, which: int, gap: int) -> None:
        account = self._one(which)
        answer = self.house.send(account, len(account.answers) + gap, self.house.heard(0, 160))
        assert answer.status_code == 409, answer.text

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, MOST))
    def finish(self, which: int) -> None:
        account = self._one(which)
        answer = self.house.ask("POST", f"{account.url}/finish")
        assert answer.status_code == 200, answer.text
        text = answer.json()["text"]
        assert account.text in (None, text)
        account.text = text

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, MOST), after=st.one_of(st.none(), st.integers(0, 12)))
    def read(self, which: int, after: int | None) -> None:
        account = self._one(which)
        told = self.house.read(account, after)
        numbers = [number for number, _ in told]
        assert numbers == sorted(set(numbers)) and all(number > (-1 if after is None else after) for number in numbers)
        for number, event in told:
            assert account.events.setdefault(number, event) == event

    @precondition(lambda self: self.kills < KILLS)
    @rule(name=st.sampled_from(("live", "whisper", "media")))
    def kill(self, name: str) -> None:
        victims = [each for each in self.house.server.workers(name) if each.status() != psutil.STATUS_ZOMBIE]
        if victims:
            self.kills += 1
            victims[0].kill()
            self.house.done["kill"] += 1

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, MOST))
    def delete(self, which: int) -> None:
        account = self._one(which)
        self.open.remove(account)
        self._end(account)

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        listed = {each["id"]: each for each in self.house.ask("GET", PATH).json()["data"]}
        assert listed.keys() == {each.url.rpartition("/")[2] for each in self.open}
        for each in self.open:
            view = listed[each.url.rpartition("/")[2]]
            assert view["samples"] == each.samples
            assert (view["state"] == "finished") == (each.text is not None)
        self.house.done["step"] += 1

    def teardown(self) -> None:
        for number, account in enumerate(self.open):
            self.finish(number)
            assert account.text == self.house.undisturbed(account.segmentation, account.samples)
            told = [event for _, event in self.house.read(account, None)]
            deltas = [event["delta"] for event in told if event["type"] == "transcript.text.delta"]
            assert "".join(deltas) == account.text
            assert told[-1]["type"] == "session.closed"
        for account in self.open:
            self._end(account)

    def _one(self, which: int) -> Account:
        return self.open[which % len(self.open)]

    def _end(self, account: Account) -> None:
        assert self.house.ask("DELETE", account.url).status_code == 204
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/finish"), ("GET", "/events")):
            assert self.house.ask(method, f"{account.url}{path}").status_code == 404


def run(house: House, number: int, examples: int, steps: int) -> None:
    """So many runs of so many steps. Raises what did not hold, with the steps that led to it."""
    machine = type("Seeded", (Dictations,), {"house": house})
    run_state_machine_as_test(
        seed(number)(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


def spoken() -> Samples:
    return timeline(0.4, "The children are playing in the garden.", 0.9, "Please open the window.", 1.2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.machine", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    wanted = parser.parse_args()
    end, runs = time.monotonic() + wanted.seconds, 0
    with opened(Path.home() / ".cache" / "starling-tests") as house:
        while time.monotonic() < end:
            run(house, wanted.seed + runs, examples=5, steps=30)
            runs += 5
    told = ", ".join(f"{what} {number} times" for what, number in sorted(house.done.items()))
    sys.stdout.write(f"{runs} runs, nothing was lost, told twice or answered wrongly (seed {wanted.seed}): {told}\n")


@contextmanager
def opened(models: Path) -> Iterator[House]:
    """Over a service of its own, which must have met no error and keep nothing at the end."""
    with (
        serving(models, "--whisper-model", "whisper-tiny.en", "--stall-seconds", "600", "--start-wait", "90") as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client,
    ):
        yield House(server, client, spoken())
        assert server.recorded() == []
        until(lambda: server.spooled() == [], "the spool is empty", seconds=20)
        assert "Traceback" not in server.log, server.log[server.log.index("Traceback") :][:3000]


if __name__ == "__main__":
    main()
