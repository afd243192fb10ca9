"""Live dictation through a real service: chunks in, events and text out, every refusal, and nothing left behind."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile
import soxr

from examples.dictate import Dictation
from tests.e2e.server import ROOT, Server, serving, until
from tests.speech import SAMPLE_RATE, Samples, timeline

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]

GARDEN = "The children are playing in the garden."
STATION = "We will meet at the station tomorrow morning."
DOOR = "Please open the window and close the door."
BICYCLE = "My brother bought a new blue bicycle yesterday."
PATH = "/v1/audio/sessions"
S16 = "audio/pcm;encoding=s16le"
TENTH = SAMPLE_RATE // 10
"""Samples in a chunk of 100 ms."""

Event = dict[str, Any]


def s16(samples: Samples) -> bytes:
    return samples.astype("<i2").tobytes()


def feed(session: Dictation, samples: Samples, step: int = TENTH, speed: float = 0.0) -> list[dict[str, Any]]:
    """The answers to chunks of `step` samples, `speed` times as fast as they were spoken; 0: as fast as it goes."""
    answers, began = [], time.monotonic()
    for start in range(0, len(samples), step):
        if speed:
            due = began + (start + step) / SAMPLE_RATE / speed
            time.sleep(max(0.0, due - time.monotonic()))
        answers.append(session.add(s16(samples[start : start + step])))
    return answers


def dictated(server: Server, samples: Samples, step: int = TENTH, **asked: object) -> dict[str, Any]:
    """What `finish` answers after all of it was fed at once."""
    with Dictation(server.url, S16, **asked) as session:
        feed(session, samples, step)
        answer = session.finish()
        session.remove()
    return answer


def one_shot(server: Server, samples: Samples, **fields: str) -> dict[str, Any]:
    body = httpx.post(
        f"{server.url}/v1/audio/transcriptions", files={"file": wav(samples)}, data=fields, timeout=200
    ).json()
    return dict(body)


def wav(samples: Samples) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE, format="WAV")
    return file.getvalue()


def collect(session: Dictation, seen: list[tuple[str | None, Event]]) -> None:
    """Events as they come, to the end of the stream."""
    for told in session.events():
        seen.append(told)


def state(session: Dictation, server: Server) -> dict[str, Any]:
    return dict(httpx.get(f"{server.url}{PATH}/{session.session['id']}").json())


def kept(session: Dictation, after: str | None = None) -> list[tuple[str, Event]]:
    """Events with ids, to the end of the stream."""
    return [(number, event) for number, event in session.events(after) if number is not None]


def trouble(server: Server) -> str:
    """The first traceback in the log; empty: there is none."""
    return server.log.partition("Traceback")[2][:3000]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def named(events: list[tuple[str, Event]], name: str) -> list[Event]:
    return [event for _, event in events if event["type"] == name]


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture(scope="module")
def three() -> Samples:
    """Three sentences with a second between them; it ends with the last word."""
    return timeline(0.5, GARDEN, 1.0, STATION, 1.0, DOOR)


@pytest.fixture(scope="module")
def long() -> Samples:
    """Over 40 s: more than one window."""
    return timeline(0.5, *[part for sentence in [GARDEN, STATION, DOOR, BICYCLE] * 3 for part in (sentence, 0.7)])


@pytest.fixture
def session(tiny: Server) -> Iterator[Dictation]:
    with Dictation(tiny.url, S16) as opened:
        yield opened
        httpx.delete(f"{tiny.url}{PATH}/{opened.session['id']}")


def test_utterances_are_told_while_the_rest_is_still_spoken(tiny: Server, three: Samples) -> None:
    with Dictation(tiny.url, S16) as session, ThreadPoolExecutor() as pool:
        assert session.session["state"] == "open"
        assert session.session["vocabulary"] is None
        reading = pool.submit(kept, session)
        answers = feed(session, three[:-TENTH])
        until(lambda: "station" in state(session, tiny)["text"], "two utterances are committed")
        answers += feed(session, three[-TENTH:])
        text = session.finish()["text"]
        events = reading.result(20)
        session.remove()
    assert [answer["seq"] for answer in answers] == list(range(len(answers)))
    assert [answer["samples"] for answer in answers] == [
        *range(TENTH, len(three) - TENTH, TENTH),
        len(three) - TENTH,
        len(three),
    ]
    assert answers[-1]["duration"] == pytest.approx(len(three) / SAMPLE_RATE, abs=0.001)
    assert {answer["speech"] for answer in answers} <= {None, True, False}
    assert [answer["speech"] for answer in answers].count(True) > len(answers) / 2
    for word in ("garden", "station", "window", "door"):
        assert word in text
    assert events[0][1]["type"] == "session.created"
    assert events[0][1]["session"]["id"] == session.session["id"]
    deltas = named(events, "transcript.text.delta")
    assert "".join(event["delta"] for event in deltas) == text
    (done,) = named(events, "transcript.text.done")
    assert done["text"] == text
    assert (events[-1][1]["type"], events[-1][1]["reason"]) == ("session.closed", "finished")
    # Two utterances were committed, and told in answers to chunks, before the third had ended.
    assert "station" in "".join(segment["text"] for answer in answers for segment in answer["segments"])


def test_speech_is_where_it_was_spoken(tiny: Server, three: Samples) -> None:
    with Dictation(tiny.url, S16) as session:
        feed(session, three)
        session.finish()
        events = kept(session)
        session.remove()
    starts = [event["start"] for event in named(events, "speech.started")]
    ends = [event["end"] for event in named(events, "speech.stopped")]
    garden = len(timeline(0.5, GARDEN)) / SAMPLE_RATE
    station = len(timeline(0.5, GARDEN, 1.0, STATION)) / SAMPLE_RATE
    assert starts == pytest.approx([0.5, garden + 1.0, station + 1.0], abs=0.35)
    assert ends[:2] == pytest.approx([garden, station], abs=0.35)
    assert len(ends) == 3


def test_the_last_word_is_there_when_finish_follows_the_last_chunk_at_once(tiny: Server) -> None:
    for sentence, word in ((GARDEN, "garden"), (BICYCLE, "yesterday")):
        spoken = timeline(sentence)
        heard = np.flatnonzero(np.abs(spoken) > 300)
        assert word in dictated(tiny, spoken[: heard[-1] + 1])["text"]


def test_silence_says_nothing(tiny: Server) -> None:
    for segmentation in ("vad", "window"):
        assert dictated(tiny, timeline(3.0), segmentation=segmentation)["text"] == ""


def test_however_the_audio_is_cut_text_and_times_are_the_same(tiny: Server, three: Samples) -> None:
    steps = (160, 321, 511, 512, 1600, 16_000, len(three))
    with ThreadPoolExecutor(4) as pool:
        bodies = list(pool.map(lambda step: dictated(tiny, three, step, response_format="verbose_json"), steps))
    told = [(body["text"], [(each["start"], each["end"]) for each in body["segments"]]) for body in bodies]
    assert told == [told[0]] * len(steps)
    assert "garden" in told[0][0]


def test_verbose_json_has_the_segments_that_chunks_were_answered_with(tiny: Server, three: Samples) -> None:
    asked = {"response_format": "verbose_json", "timestamp_granularities": ["segment", "word"]}
    with Dictation(tiny.url, S16, **asked) as session:
        answers = feed(session, three[:-TENTH])
        until(lambda: "station" in state(session, tiny)["text"], "two utterances are committed")
        answers += feed(session, three[-TENTH:])
        body = session.finish()
        session.remove()
    early = [segment for answer in answers for segment in answer["segments"]]
    assert len(early) >= 2
    assert body["segments"][: len(early)] == early
    assert "".join(segment["text"] for segment in body["segments"]).strip() == body["text"]
    assert [segment["id"] for segment in body["segments"]] == list(range(len(body["segments"])))
    times = [time for word in body["words"] for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] <= body["duration"] == pytest.approx(len(three) / SAMPLE_RATE, abs=0.001)
    assert (body["task"], body["language"]) == ("transcribe", "english")


def guessed_at(server: Server, samples: Samples) -> tuple[list[tuple[str | None, Event]], str]:
    """Events and text of speech without a pause, fed no faster than partial texts come, a second of it for each."""
    seen: list[tuple[str | None, Event]] = []

    def came(least: int) -> bool:
        return len([event for _, event in seen if event["type"] == "transcript.text.partial"]) >= least

    with Dictation(server.url, S16, partials=True) as session, ThreadPoolExecutor() as pool:
        reading = pool.submit(collect, session, seen)
        feed(session, samples[:SAMPLE_RATE])
        for second in range(1, len(samples) // SAMPLE_RATE):
            feed(session, samples[second * SAMPLE_RATE :][:SAMPLE_RATE])
            until(partial(came, second), "there is another partial text")
        text = session.finish()["text"]
        reading.result(20)
        session.remove()
    return seen, text


def test_partial_texts_come_while_an_utterance_is_open(tiny: Server) -> None:
    events, text = guessed_at(tiny, timeline(GARDEN.removesuffix(".") + " and " + STATION.lower()))
    partials = [event for number, event in events if event["type"] == "transcript.text.partial" and number is None]
    stable = [event["stable"] for event in partials]
    assert len(partials) >= 3
    assert all(later.startswith(earlier) for earlier, later in pairwise(stable))
    assert all(event["text"].startswith(event["stable"]) for event in partials)
    assert words(text)[: len(words(stable[-1]))] == words(stable[-1])
    assert {number for number, event in events if event["type"] != "transcript.text.partial"}.isdisjoint({None})


@pytest.mark.shared
def test_what_is_stable_of_a_real_recording_is_committed(tiny: Server, recordings: Path) -> None:
    # Ten seconds without a pause: words are stable from the fifth partial text on, whatever is guessed at in between.
    samples, _ = soundfile.read(recordings / "ls-1089-134686-0000.flac", dtype="int16")
    events, text = guessed_at(tiny, samples)
    stable = max((event["stable"] for _, event in events if event["type"] == "transcript.text.partial"), key=len)
    assert len(words(stable)) >= 3
    assert words(text)[: len(words(stable))] == words(stable)


RAW: tuple[tuple[str, str, int, int], ...] = (
    ("audio/pcm", "<f4", 16_000, 1),
    ("audio/l32", "<f4", 16_000, 1),
    ("application/x-float32;rate=44100", "<f4", 44_100, 1),
    ("audio/pcm;encoding=f32le;rate=48000;channels=2", "<f4", 48_000, 2),
    ("audio/pcm;encoding=s16le", "<i2", 16_000, 1),
    ("audio/pcm;encoding=s16le;rate=8000", "<i2", 8_000, 1),
    ("audio/pcm;encoding=s16be;rate=22050;channels=2", ">i2", 22_050, 2),
    ("audio/l16;rate=16000", ">i2", 16_000, 1),
)


@pytest.mark.parametrize(("content_type", "kind", "rate", "channels"), RAW, ids=[each[0] for each in RAW])
def test_raw_samples_of_every_kind_are_heard(
    tiny: Server, content_type: str, kind: str, rate: int, channels: int
) -> None:
    spoken = timeline(0.3, GARDEN, 0.3).astype(np.float32) / 32768
    frames = np.repeat(soxr.resample(spoken, SAMPLE_RATE, rate)[:, None], channels, axis=1)
    scaled = frames if kind == "<f4" else np.round(frames * 32767)
    data = scaled.astype(kind).tobytes()
    step = scaled.astype(kind)[:1].nbytes * (rate // 7)
    with Dictation(tiny.url, content_type) as session:
        for start in range(0, len(data), step):
            answer = session.add(data[start : start + step])
        text = session.finish()["text"]
        state = httpx.get(f"{tiny.url}{PATH}/{session.session['id']}").json()
        session.remove()
    assert "playing in the garden" in text
    assert answer["duration"] == pytest.approx(len(frames) / rate, abs=0.001)
    assert state["samples"] == answer["samples"] == pytest.approx(len(frames) / rate * SAMPLE_RATE, abs=1)


def test_encoded_files_and_raw_samples_follow_each_other(tiny: Server) -> None:
    def encoded(samples: Samples, kind: str, subtype: str | None = None) -> bytes:
        file = io.BytesIO()
        soundfile.write(file, samples, SAMPLE_RATE, format=kind, subtype=subtype)
        return file.getvalue()

    chunks: list[tuple[str, bytes]] = [
        ("audio/flac", encoded(timeline(0.3, GARDEN, 0.7), "FLAC")),
        (S16, s16(timeline(STATION, 0.7))),
        ("audio/ogg", encoded(timeline(DOOR, 0.7), "OGG", "OPUS")),
        ("application/octet-stream", wav(timeline(BICYCLE))),
    ]
    with httpx.Client(base_url=tiny.url, timeout=60) as client:
        path = f"{PATH}/{client.post(PATH).json()['id']}"
        seconds = []
        for number, (content_type, data) in enumerate(chunks):
            headers = {"content-type": content_type, "x-starling-seq": str(number)}
            answer = client.post(f"{path}/audio", content=data, headers=headers)
            seconds.append(answer.raise_for_status().json()["duration"])
        text = client.post(f"{path}/finish").json()["text"]
        client.delete(path)
    places = [text.index(word) for word in ("garden", "station", "window", "bicycle")]
    assert places == sorted(places)
    whole = len(timeline(0.3, GARDEN, 0.7, STATION, 0.7, DOOR, 0.7, BICYCLE)) / SAMPLE_RATE
    assert seconds == sorted(seconds)
    assert seconds[-1] == pytest.approx(whole, abs=0.05)


def test_a_wrong_chunk_is_refused_and_the_session_goes_on_unharmed(tiny: Server, session: Dictation) -> None:
    spoken = timeline(GARDEN)
    before = feed(session, spoken[: len(spoken) // 2], step=len(spoken))[-1]
    path = f"{tiny.url}{PATH}/{session.session['id']}"
    wrong: list[tuple[str, bytes, int, str]] = [
        (S16, b"\0" * 3, 400, "encoding"),
        ("audio/pcm", b"\0" * 6, 400, "encoding"),
        ("audio/pcm", np.full(64, np.nan, "<f4").tobytes(), 400, "s16le"),
        ("audio/pcm", np.full(64, 20_000.0, "<f4").tobytes(), 400, "s16le"),
        ("audio/pcm;encoding=mulaw", bytes(64), 400, "s16le"),
        ("audio/pcm;rate=7999", bytes(64), 400, "8000"),
        ("audio/pcm;rate=48001", bytes(64), 400, "48000"),
        ("audio/pcm;channels=3", bytes(64), 400, "channels"),
        ("audio/wav", b"<html>404</html>", 400, ""),
        (S16, bytes((4 << 20) + 2), 413, ""),
    ]
    for content_type, data, status, said in wrong:
        answer = httpx.post(f"{path}/audio", content=data, headers={"content-type": content_type}, timeout=30)
        assert answer.status_code == status, (content_type, answer.text)
        assert said in answer.json()["error"]["message"], content_type
    assert httpx.get(path).json()["samples"] == before["samples"] == len(spoken) // 2
    session.add(s16(spoken[len(spoken) // 2 :]))
    assert "children are playing in the garden" in session.finish()["text"]


def test_windows_give_the_text_of_the_whole_recording(tiny: Server, long: Samples) -> None:
    whole = one_shot(tiny, long, response_format="verbose_json")
    body = dictated(tiny, long, SAMPLE_RATE, segmentation="window", response_format="verbose_json", audio_ctx=1500)
    assert len(whole["segments"]) >= 5
    assert body["text"] == whole["text"]
    assert [(each["start"], each["end"]) for each in body["segments"]] == [
        (each["start"], each["end"]) for each in whole["segments"]
    ]


def test_windows_of_a_shortened_context_do_too(tiny: Server, long: Samples) -> None:
    whole = one_shot(tiny, long, audio_ctx="auto")
    assert dictated(tiny, long, SAMPLE_RATE, segmentation="window")["text"] == whole["text"]


@pytest.mark.shared
def test_windows_of_a_real_recording_do_too(tiny: Server, recordings: Path) -> None:
    samples, rate = soundfile.read(recordings / "ls-367-130732-0002.flac", dtype="int16")
    assert rate == SAMPLE_RATE
    whole = one_shot(tiny, samples)["text"]
    assert dictated(tiny, samples, segmentation="window", audio_ctx=1500)["text"] == whole != ""


@pytest.mark.shared
def test_utterances_of_a_real_recording_are_its_words(tiny: Server, recordings: Path) -> None:
    with Dictation(tiny.url, "audio/mpeg") as session:
        session.add((recordings / "jfk.mp3").read_bytes())
        text = session.finish()["text"]
        session.remove()
    # He pauses within the sentence; its pieces may end with a full stop.
    assert "ask not what your country can do for you" in text.lower().replace(".", "")
    assert text.lower().count("your country") == 2


def test_all_readers_see_the_same_and_each_may_resume_anywhere(tiny: Server, three: Samples) -> None:
    with Dictation(tiny.url, S16) as session, ThreadPoolExecutor(6) as pool:
        early = [pool.submit(kept, session) for _ in range(3)]
        half = len(three) // 2
        feed(session, three[:half])
        early += [pool.submit(kept, session) for _ in range(2)]
        feed(session, three[half:])
        session.finish()
        seen = [reading.result(20) for reading in early]
        late = kept(session)
        resumed = [kept(session, number) for number, _ in late]
        session.remove()
    assert seen == [late] * 5
    assert resumed == [late[place + 1 :] for place in range(len(late))]
    assert len({number for number, _ in late}) == len(late) > 8


def test_a_reader_that_is_gone_costs_nothing(tiny: Server, session: Dictation) -> None:
    path = f"{tiny.url}{PATH}/{session.session['id']}/events"
    for _ in range(10):
        with httpx.stream("GET", path) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert next(answer.iter_lines())
    feed(session, timeline(GARDEN))
    assert "garden" in session.finish()["text"]
    assert trouble(tiny) == ""


def test_no_audio_is_an_empty_text_and_the_same_again(tiny: Server) -> None:
    with Dictation(tiny.url, S16) as session:
        assert session.finish()["text"] == ""
        assert session.finish()["text"] == ""
        session.remove()


def test_two_finishes_at_once_are_one_answer(tiny: Server, session: Dictation) -> None:
    feed(session, timeline(GARDEN))
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(session.finish) for _ in range(2))
    assert first.result() == second.result()
    assert "garden" in first.result()["text"]


def test_a_client_that_leaves_its_finish_can_ask_again(tiny: Server, session: Dictation) -> None:
    feed(session, timeline(GARDEN, 0.7, STATION))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{tiny.url}{PATH}/{session.session['id']}/finish", timeout=httpx.Timeout(5, read=0.01))
    assert "station" in session.finish()["text"]


def test_audio_after_finish_is_a_conflict(tiny: Server, session: Dictation) -> None:
    feed(session, timeline(0.3))
    session.finish()
    path = f"{tiny.url}{PATH}/{session.session['id']}/audio"
    answer = httpx.post(path, content=bytes(320), headers={"content-type": S16})
    assert code_of(answer) == (409, "session_finishing")
    assert answer.headers["x-should-retry"] == "false"


def test_a_retried_chunk_is_counted_once_and_a_gap_is_a_conflict(tiny: Server, session: Dictation) -> None:
    path = f"{tiny.url}{PATH}/{session.session['id']}"

    def add(seq: str) -> httpx.Response:
        headers = {"content-type": S16, "x-starling-seq": seq}
        return httpx.post(f"{path}/audio", content=bytes(3200), headers=headers)

    first, second = add("0").json(), add("1").json()
    assert (second["seq"], second["samples"]) == (1, 3200)
    for seq, answer in (("0", first), ("1", second)):
        again = add(seq).json()
        assert (again["seq"], again["samples"], again["duration"]) == (
            answer["seq"],
            answer["samples"],
            answer["duration"],
        )
    gap = add("3")
    assert code_of(gap) == (409, "sequence_gap")
    assert gap.headers["x-should-retry"] == "false"
    assert add("-1").status_code == add("two").status_code == 400
    assert httpx.get(path).json()["samples"] == 3200


def test_an_app_finds_its_recording_again(tiny: Server, session: Dictation) -> None:
    feed(session, timeline(GARDEN, 1.0))
    path = f"{tiny.url}{PATH}/{session.session['id']}"
    until(lambda: "garden" in httpx.get(path).json()["text"], "the utterance is committed")
    state = httpx.get(path).json()
    assert set(state) >= {"id", "model", "state", "created", "expires_at", "samples", "duration", "text"}
    assert (state["state"], state["created"] <= time.time() < state["expires_at"]) == ("open", True)
    listed = httpx.get(f"{tiny.url}{PATH}").json()
    entries = listed if isinstance(listed, list) else listed["data"]
    assert session.session["id"] in {entry["id"] for entry in entries}
    session.finish()
    assert httpx.get(path).json()["state"] == "finished"


@pytest.mark.parametrize(
    ("method", "rest"), [("GET", ""), ("DELETE", ""), ("GET", "/events"), ("POST", "/audio"), ("POST", "/finish")]
)
@pytest.mark.parametrize("name", ["nobody", "..%2F..%2Fspool"])
def test_an_unknown_session_is_not_found(tiny: Server, method: str, rest: str, name: str) -> None:
    answer = httpx.request(method, f"{tiny.url}{PATH}/{name}{rest}", headers={"content-type": S16})
    assert answer.status_code == 404


def test_a_wrong_wish_is_refused_by_name(tiny: Server) -> None:
    wrong = {
        "segmentation": "sentences",
        "vad_silence_ms": 99,
        "vad_threshold": 1,
        "partials": "perhaps",
        "response_format": "srt",
        "language": "klingon",
        "audio_ctx": 63,
    }
    for name, value in wrong.items():
        answer = httpx.post(f"{tiny.url}{PATH}", json={name: value})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, name), error
    assert code_of(httpx.post(f"{tiny.url}{PATH}", json={"task": "translate"})) == (400, "unsupported_task")
    ignored = httpx.post(f"{tiny.url}{PATH}", json={"colour": "red", "language": None, "prompt": ""})
    assert (ignored.status_code, ignored.headers["x-starling-ignored"]) == (201, "colour")
    assert httpx.delete(f"{tiny.url}{PATH}/{ignored.json()['id']}").status_code == 204


def test_a_vocabulary_is_reported_and_used(tiny: Server) -> None:
    with Dictation(tiny.url, S16, vocabulary=["station", "garden", "station"]) as session:
        report = session.session["vocabulary"]
        feed(session, timeline(STATION))
        text = session.finish()["text"]
        session.remove()
    assert (report["given"], report["fitted"]) == (2, 2) or (report["given"], report["fitted"]) == (3, 2)
    assert 0 < report["tokens"] <= report["budget"] <= 223
    assert "station" in text


def test_a_session_may_be_removed_at_any_moment_and_leaves_nothing(tiny: Server, three: Samples) -> None:
    for session in httpx.get(f"{tiny.url}{PATH}").json()["data"]:
        httpx.delete(f"{tiny.url}{PATH}/{session['id']}")
    assert tiny.recorded() == []
    for fed in (0, 1, len(three) // 3, len(three)):
        with Dictation(tiny.url, S16, partials=True) as session, ThreadPoolExecutor() as pool:
            seen: list[tuple[str | None, Event]] = []
            reading = pool.submit(collect, session, seen)
            until(seen.__len__, "the reader is there")
            feed(session, three[:fed], step=4000)
            session.remove()
            reading.result(10)
            assert seen[-1][1] == {"type": "session.closed", "reason": "deleted"}
            assert tiny.recorded() == []
            assert httpx.get(f"{tiny.url}{PATH}/{session.session['id']}").status_code == 404
    until(lambda: tiny.stats("whisper")["running"] == 0, "its jobs left the worker", seconds=20)


def test_a_finish_that_waits_learns_of_the_removal(tiny: Server, long: Samples) -> None:
    with Dictation(tiny.url, S16, segmentation="window") as session, ThreadPoolExecutor() as pool:
        feed(session, long, step=SAMPLE_RATE)
        path = f"{tiny.url}{PATH}/{session.session['id']}"
        finishing = pool.submit(httpx.post, f"{path}/finish", timeout=60)
        until(lambda: httpx.get(path).json()["state"] == "finishing", "it is finishing")
        assert httpx.delete(path).status_code == 204
        assert code_of(finishing.result()) == (404, "unknown_session")
    assert tiny.recorded() == []


def test_a_chunk_that_races_the_removal_leaves_nothing(tiny: Server) -> None:
    for _ in range(10):
        identity = httpx.post(f"{tiny.url}{PATH}").json()["id"]
        path = f"{tiny.url}{PATH}/{identity}"
        with ThreadPoolExecutor(2) as pool:
            adding = pool.submit(httpx.post, f"{path}/audio", content=bytes(1 << 20), headers={"content-type": S16})
            assert pool.submit(httpx.delete, path).result().status_code == 204
        assert adding.result().status_code in (200, 404)
    assert tiny.recorded() == []
    assert trouble(tiny) == ""


@pytest.fixture(scope="module")
def strict(model_data_dir: Path) -> Iterator[Server]:
    """A server of small limits."""
    limits = ("--session-idle", "2", "--session-keep", "2", "--max-sessions", "2", "--max-session-seconds", "20")
    with serving(model_data_dir, "--whisper-model", "whisper-tiny.en", *limits) as server:
        yield server


def test_a_session_without_audio_finishes_by_itself_keeps_its_text_and_is_removed_later(strict: Server) -> None:
    with Dictation(strict.url, S16) as session:
        path = f"{strict.url}{PATH}/{session.session['id']}"
        feed(session, timeline(GARDEN))
        until(lambda: httpx.get(path).json()["state"] == "finished", "it is finished", seconds=20)
        assert "garden" in httpx.get(path).json()["text"]
        assert kept(session)[-1][1] == {"type": "session.closed", "reason": "expired"}
        until(lambda: httpx.get(path).status_code == 404, "it is removed", seconds=20)
    until(lambda: strict.recorded() == [], "nothing is left", seconds=20)


def test_too_many_and_too_long_are_said_so(strict: Server) -> None:
    first, second = (httpx.post(f"{strict.url}{PATH}").json()["id"] for _ in range(2))
    third = httpx.post(f"{strict.url}{PATH}")
    assert code_of(third) == (429, "too_many_sessions")
    assert 1 <= int(third.headers["retry-after"]) <= 120
    path = f"{strict.url}{PATH}/{first}"
    fits, more = bytes(2 * 20 * SAMPLE_RATE), bytes(2)
    answers = [httpx.post(f"{path}/audio", content=data, headers={"content-type": S16}) for data in (fits, more)]
    assert [answer.status_code for answer in answers] == [200, 413]
    assert httpx.post(f"{path}/finish", timeout=60).json()["text"] == ""
    # A finished one is not open any more.
    fourth = httpx.post(f"{strict.url}{PATH}")
    assert fourth.status_code == 201
    for identity in (first, second, fourth.json()["id"]):
        httpx.delete(f"{strict.url}{PATH}/{identity}")


def test_the_official_client_is_served_while_people_dictate(tiny: Server, three: Samples) -> None:
    official = openai.OpenAI(base_url=f"{tiny.url}/v1", api_key="none", max_retries=0)
    with official as client, Dictation(tiny.url, S16) as session, ThreadPoolExecutor() as pool:
        feeding = pool.submit(feed, session, three, TENTH, 3.0)
        answer = client.audio.transcriptions.create(model="whisper-1", file=("a.wav", wav(timeline(BICYCLE))))
        events = list(
            client.audio.transcriptions.create(model="whisper-1", file=("a.wav", wav(timeline(BICYCLE))), stream=True)
        )
        feeding.result()
        text = session.finish()["text"]
        session.remove()
    assert "bicycle" in answer.text
    assert events[-1].type == "transcript.text.done"
    assert "garden" in text and "door" in text


def run_example(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "examples/dictate.py", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory, three: Samples) -> Path:
    path = tmp_path_factory.mktemp("clip") / "three.wav"
    stereo = np.repeat(soxr.resample(three.astype(np.float32) / 32768, SAMPLE_RATE, 44_100)[:, None], 2, axis=1)
    soundfile.write(path, stereo, 44_100)
    return path


def test_it_shows_what_it_hears_and_prints_the_whole(tiny: Server, clip: Path) -> None:
    with run_example(str(clip), "--url", tiny.url, "--speed", "4", "--partials", "--language", "en") as process:
        text, shown = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    assert "garden" in text and "door" in text
    assert " ".join(line.strip() for line in shown.splitlines()) == text.strip()
    assert len(shown.splitlines()) >= 3


def test_ctrl_c_ends_the_dictation_and_keeps_what_was_said(tiny: Server, clip: Path) -> None:
    with run_example(str(clip), "--url", tiny.url, "--speed", "1.5") as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        text, shown = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    assert "garden" in first
    assert "garden" in text and "door" not in text


def test_it_says_what_is_wrong(tiny: Server, clip: Path) -> None:
    with run_example(str(clip), "--url", tiny.url, "--language", "klingon") as process:
        text, shown = process.communicate(timeout=60)
    assert (process.returncode, text) == (1, "")
    assert "klingon" in shown and "Traceback" not in shown


def test_nothing_of_it_all_stays_on_disk(tiny: Server) -> None:
    for session in httpx.get(f"{tiny.url}{PATH}").json()["data"]:
        assert httpx.delete(f"{tiny.url}{PATH}/{session['id']}").status_code == 204
    assert tiny.recorded() == []
    until(lambda: tiny.spooled() == [], "the spool is empty", seconds=20)
    assert trouble(tiny) == ""
