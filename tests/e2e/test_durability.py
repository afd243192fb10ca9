"""kill -9 of the live media worker, of the Whisper worker and of the server, at many points of many dictations.

Each dictation goes on and ends with the text of one that nobody disturbed; no acknowledged chunk is lost, no event is
told twice or left out, and no file stays behind.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from examples.dictate import Dictation, Refused
from tests.e2e.server import Server, serving, unused_port
from tests.speech import SAMPLE_RATE, Samples, timeline

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(300)]

PATH = "/v1/audio/sessions"
SEED = 4
ROUNDS = 17
"""Each kills the live media worker, the Whisper worker and the server once: 51 kills."""
SPEED = 3.0
LATEST_S = 0.9
"""The longest time between the moment when a process can be killed and its death."""

GARDEN = "The children are playing in the garden."
STATION = "We will meet at the station tomorrow morning."
DOOR = "Please open the window and close the door."
BICYCLE = "My brother bought a new blue bicycle yesterday."


@dataclass(frozen=True)
class Speaker:
    """What one client says again and again, and how it wants it written down."""

    name: str
    samples: Samples
    asked: dict[str, Any]


@dataclass
class Outcome:
    """What one dictation came to, for its client and for a reader of its events."""

    text: str
    acknowledged: list[int]
    """The session's samples after each chunk."""
    resumed: list[tuple[str, dict[str, Any]]]
    replayed: list[tuple[str, dict[str, Any]]]
    fed: list[int] = field(default_factory=list)
    """What they ought to be."""


def dictated(url: str, speaker: Speaker, chance: random.Random) -> Outcome:
    """From create to delete, in chunks of any length; whatever breaks meanwhile is tried again."""
    with Dictation(url, "audio/pcm;encoding=s16le", **speaker.asked) as session, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(kept, session)
        acknowledged, fed, sent = list[int](), list[int](), 0
        began = time.monotonic()
        while sent < len(speaker.samples):
            upto = min(sent + chance.choice([1, 511, 1600, 4000, 8000]), len(speaker.samples))
            time.sleep(max(0.0, began + upto / SAMPLE_RATE / SPEED - time.monotonic()))
            answer = session.add(speaker.samples[sent:upto].astype("<i2").tobytes())
            assert answer["seq"] == len(fed)
            sent = upto
            fed.append(sent)
            acknowledged.append(answer["samples"])
        text = session.finish()["text"]
        outcome = Outcome(text, acknowledged, reading.result(60), kept(session), fed)
        with suppress(Refused):  # Removed, but the server died before it said so.
            session.remove()
        return outcome


def kept(session: Dictation) -> list[tuple[str, dict[str, Any]]]:
    return [(number, event) for number, event in session.events() if number is not None]


def check(outcome: Outcome, undisturbed: Outcome) -> None:
    assert outcome.text == undisturbed.text
    assert outcome.acknowledged == outcome.fed
    assert outcome.resumed == outcome.replayed
    assert len({number for number, _ in outcome.replayed}) == len(outcome.replayed)
    assert told(outcome) == told(undisturbed)


def told(outcome: Outcome) -> list[tuple[str, object]]:
    """Events by type, with what must be the same every time."""
    by_type = {
        "transcript.text.delta": "delta",
        "transcript.text.done": "text",
        "speech.started": "start",
        "speech.stopped": "end",
        "session.closed": "reason",
    }
    return [(event["type"], event.get(by_type.get(event["type"], ""))) for _, event in outcome.replayed]


class Killer:
    """Ends one process after the other, each some time after it could be of use."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self._server = server
        self._chance = chance
        self.points: list[str] = []

    def run(self) -> None:
        for _ in range(ROUNDS):
            for kill in self._chance.sample([self._live, self._whisper, self._front], 3):
                kill()

    def _live(self) -> None:
        self._worker("live")

    def _whisper(self) -> None:
        self._worker("whisper")

    def _worker(self, name: str) -> None:
        until(lambda: self._server.stats(name)["state"] == "ready", f"{name} is ready")
        time.sleep(self._chance.uniform(0, LATEST_S))
        (victim,) = self._server.workers(name)
        victim.kill()
        self.points.append(name)

    def _front(self) -> None:
        time.sleep(self._chance.uniform(0, LATEST_S))
        self._server.kill_and_restart()
        self.points.append("server")


def until(happened: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def server(model_data_dir: Path) -> Iterator[Server]:
    with serving(model_data_dir, "--whisper-model", "whisper-tiny.en", port=unused_port()) as started:
        yield started


@pytest.fixture(scope="module")
def speakers() -> tuple[Speaker, ...]:
    return (
        Speaker("utterances", timeline(0.3, GARDEN, 0.8, STATION, 0.8, DOOR), {}),
        Speaker("partials", timeline(0.3, BICYCLE, 0.8, DOOR, 0.8, GARDEN, 0.5), {"partials": True}),
        Speaker("windows", timeline(*(STATION, GARDEN, BICYCLE, DOOR) * 3), {"segmentation": "window"}),
    )


@pytest.fixture(scope="module")
def undisturbed(server: Server, speakers: tuple[Speaker, ...]) -> dict[str, Outcome]:
    chance = random.Random(SEED)
    return {speaker.name: dictated(server.url, speaker, chance) for speaker in speakers}


def test_what_is_to_survive_is_worth_it(undisturbed: dict[str, Outcome]) -> None:
    for name, words in {
        "utterances": ["garden", "station", "door"],
        "partials": ["bicycle", "door", "garden"],
        "windows": ["station", "garden", "bicycle", "door"] * 3,
    }.items():
        text, place = undisturbed[name].text, 0
        for word in words:
            place = text.index(word, place) + 1
    assert [kind for kind, _ in told(undisturbed["utterances"])].count("transcript.text.delta") == 3


def test_fifty_kills_change_no_text_and_lose_no_event(
    server: Server, speakers: tuple[Speaker, ...], undisturbed: dict[str, Outcome]
) -> None:
    killer, over = Killer(server, random.Random(SEED)), threading.Event()

    def speaking(number: int, speaker: Speaker) -> list[Outcome]:
        chance, outcomes = random.Random(SEED + number), list[Outcome]()
        while not over.is_set():
            outcomes.append(dictated(server.url, speaker, chance))
        return outcomes

    with ThreadPoolExecutor(len(speakers)) as pool:
        busy = [pool.submit(speaking, number, speaker) for number, speaker in enumerate(speakers)]
        try:
            killer.run()
        finally:
            over.set()
        said = [each.result() for each in busy]
    assert len(killer.points) >= 50
    for speaker, outcomes in zip(speakers, said, strict=True):
        assert len(outcomes) >= 2
        for outcome in outcomes:
            check(outcome, undisturbed[speaker.name])
    assert "Traceback" not in server.log
    # Sessions whose client never learned that they were created.
    for forgotten in httpx.get(f"{server.url}{PATH}").json()["data"]:
        assert forgotten["samples"] == 0
        assert httpx.delete(f"{server.url}{PATH}/{forgotten['id']}").status_code == 204
    assert server.recorded() == []
    assert server.spooled() == []
    front = psutil.Process(server.process.pid)
    until(lambda: front.num_fds() < 60, "no descriptors are left open", seconds=5)
