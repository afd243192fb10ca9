"""What the five formats look like, and that no segment can break them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from protocol.events import Progress, Segment, Timings, TokenLogprob, Word
from protocol.jobs import Task
from service import transcripts
from service.transcripts import FORMATS, Deltas, Meta, Timeline, Transcript

SPENT = transcripts.spent(0.5, 100.0, 0.0, Timings(mel=10.0, encode=20.0, decode=300.0, align=0.0), 10.0)


def said(start: float, end: float, text: str, **more: Any) -> Segment:
    return Segment(start, end, text, (1, 2), 0, 0.0, -0.5, 1.2, 0.1, **more)


def settled(segments: Iterable[Segment], duration: float) -> tuple[Segment, ...]:
    timeline = Timeline(duration)
    return tuple(timeline.settle(segment) for segment in segments)


def transcript(
    *raw: Any, duration: float = 10.0, task: Task = "transcribe", language: str | None = "en", **more: Any
) -> Transcript:
    """From segments or [start, end, text] triples."""
    segments = [each if isinstance(each, Segment) else said(*each) for each in raw]
    meta = Meta(model="m", language=language, language_probability=None, duration=duration, timings=SPENT)
    return Transcript(task=task, segments=settled(segments, duration), meta=meta, **more)


def written(name: str, *raw: Any, **more: Any) -> str:
    return FORMATS[name].write(transcript(*raw, **more)).decode()


def test_json_has_the_text_the_usage_and_ours() -> None:
    assert json.loads(written("json", [0, 1, " Hello"], [1, 2.5, " there."], duration=2.5)) == {
        "text": "Hello there.",
        "usage": {"type": "duration", "seconds": 3},
        "starling": {
            "model": "m",
            "language": "en",
            "language_probability": None,
            "duration": 2.5,
            "timings": {
                "queue": 70.0,
                "decode_audio": 100.0,
                "vad": 0.0,
                "mel": 10.0,
                "encode": 20.0,
                "decode": 300.0,
                "align": 0.0,
                "total": 500.0,
                "rtf": 0.05,
            },
        },
    }


def test_verbose_json_has_every_field_of_the_official_one() -> None:
    body = json.loads(written("verbose_json", [0, 1, " Hello"]))
    assert body.pop("starling")["model"] == "m"
    assert body == {
        "task": "transcribe",
        "language": "english",
        "duration": 10.0,
        "text": "Hello",
        "segments": [
            {
                "id": 0,
                "seek": 0,
                "start": 0.0,
                "end": 1.0,
                "text": " Hello",
                "tokens": [1, 2],
                "temperature": 0.0,
                "avg_logprob": -0.5,
                "compression_ratio": 1.2,
                "no_speech_prob": 0.1,
            }
        ],
        "usage": {"type": "duration", "seconds": 10},
    }


def test_a_translation_is_english_whatever_was_spoken() -> None:
    body = json.loads(written("verbose_json", [0, 1, " Hello"], task="translate", language="de"))
    assert (body["task"], body["language"], body["starling"]["language"]) == ("translate", "english", "de")


def test_what_was_not_spoken_has_no_language() -> None:
    body = json.loads(written("verbose_json", language=None))
    assert (body["language"], body["starling"]["language"], body["text"], body["segments"]) == ("unknown", None, "", [])


def test_text_is_the_words_and_a_line_end() -> None:
    assert written("text", [0, 1, " Hello"], [1, 2, " there."]) == "Hello there.\n"


def test_srt_numbers_its_cues_from_one() -> None:
    assert written("srt", [0, 1.94, " Short text"], [2.0, 3.5, " more"]) == (
        "1\n00:00:00,000 --> 00:00:01,940\nShort text\n\n2\n00:00:02,000 --> 00:00:03,500\nmore\n"
    )


def test_vtt_has_a_header_and_dots() -> None:
    assert written("vtt", [0, 1.94, " Short text"], [2.0, 3.5, " more"]) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.940\nShort text\n\n00:00:02.000 --> 00:00:03.500\nmore\n"
    )


def test_silence_is_an_empty_srt_and_a_bare_vtt_header() -> None:
    assert (written("srt"), written("vtt"), written("text")) == ("", "WEBVTT\n", "\n")


def test_cues_without_words_or_length_are_dropped_and_numbers_stay_consecutive() -> None:
    given = ([0, 1.94, " Short text"], [1.94, 1.94, "."], [2, 3, "   "], [4, 5, ""], [5, 6, " end"])
    assert written("srt", *given) == (
        "1\n00:00:00,000 --> 00:00:01,940\nShort text\n\n2\n00:00:05,000 --> 00:00:06,000\nend\n"
    )


def test_a_cue_shorter_than_a_millisecond_is_dropped() -> None:
    assert written("srt", [1.0, 1.0004, " blink"]) == ""


def test_hours_take_as_many_digits_as_they_need() -> None:
    given = ([3600.5, 3661.25, " One hour in"], [360000.0, 360001.5, " hundred hours"])
    assert written("srt", *given, duration=400_000.0) == (
        "1\n01:00:00,500 --> 01:01:01,250\nOne hour in\n\n2\n100:00:00,000 --> 100:00:01,500\nhundred hours\n"
    )


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("two\nlines", "two\nlines"),
        ("blank\n\nline inside", "blank\nline inside"),
        ("cr\rlf\r\nend", "cr\nlf\nend"),
        ("\u2028sep\u2029arated", "sep\narated"),
        ("a\x85b\x0bc", "a\nb\nc"),
        ("\ufeffstart", "start"),
        (" \n \n x \n ", "x"),
    ],
)
@pytest.mark.parametrize("name", ["srt", "vtt"])
def test_a_cue_has_no_blank_line_and_no_other_line_end_than_lf(name: str, said: str, lines: str) -> None:
    head, _, cue = written(name, [0, 1, said]).partition("01" + (",000" if name == "srt" else ".000") + "\n")
    assert head
    assert cue == lines + "\n"


@pytest.mark.parametrize(
    ("said", "in_vtt"),
    [
        ("a --> b", "a --&gt; b"),
        ("AT&T <laughter>", "AT&amp;T &lt;laughter&gt;"),
        ("1 < 2 && 3 > 2", "1 &lt; 2 &amp;&amp; 3 &gt; 2"),
        ("<00:00:01.000>x", "&lt;00:00:01.000&gt;x"),
        ("&amp; already", "&amp;amp; already"),
        ("00:00:01.000 --> 00:00:02.000", "00:00:01.000 --&gt; 00:00:02.000"),
        ("NOTE hello", "NOTE hello"),
        ("STYLE", "STYLE"),
        ("WEBVTT", "WEBVTT"),
        ("-->", "--&gt;"),
    ],
)
def test_vtt_escapes_what_srt_and_text_leave_alone(said: str, in_vtt: str) -> None:
    assert written("vtt", [0, 1, said]) == f"WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n{in_vtt}\n"
    assert written("srt", [0, 1, said]) == f"1\n00:00:00,000 --> 00:00:01,000\n{said}\n"
    assert written("text", [0, 1, said]) == f"{said}\n"


@pytest.mark.parametrize("name", FORMATS)
def test_half_characters_are_not_words(name: str) -> None:
    body = written(name, [0, 1, " 日本\ufffd"], [1, 2, "\ufffd語"])
    assert "\ufffd" not in body
    assert "日本" in body


def test_times_stay_within_the_audio_and_never_go_back() -> None:
    raw = [[0.0, 4.0, " a"], [4.0, 2.0, " b"], [2.0, 31.2, " c"], [126.66, 102.96, " d"], [5.0, 5.0, " e"]]
    segments = transcript(*raw, duration=30.0).segments
    times = [(segment.start, segment.end) for segment in segments]
    assert times == [(0.0, 4.0), (4.0, 4.0), (4.0, 30.0), (30.0, 30.0), (30.0, 30.0)]
    assert [segment.text for segment in segments] == [" a", " b", " c", " d", " e"]


def test_rounding_does_not_pass_the_end() -> None:
    (segment,) = transcript([0.0, 10.4375, " x"], duration=10.4375).segments
    assert segment.end == 10.4375


def test_overlapping_cues_are_told_apart() -> None:
    assert written("srt", [0, 2, " a"], [1, 3, " b"]).count("00:00:02,000") == 2


def test_time_that_no_worker_worked_was_spent_waiting() -> None:
    spent = transcripts.spent(2.0, 500.0, 50.0, Timings(decode=250.0), 4.0)
    assert (spent.queue, spent.vad, spent.total, spent.rtf) == (1200.0, 50.0, 2000.0, 0.5)


def test_content_types() -> None:
    assert {name: each.media_type for name, each in FORMATS.items()} == {
        "json": "application/json",
        "text": "text/plain; charset=utf-8",
        "srt": "application/x-subrip; charset=utf-8",
        "verbose_json": "application/json",
        "vtt": "text/vtt; charset=utf-8",
    }


def test_a_segment_keeps_what_is_not_about_time() -> None:
    before = Segment(1.0, 2.0, " x", (7,), 300, 0.4, -0.1, 1.1, 0.2)
    (after,) = settled([before], 30.0)
    assert msgspec.structs.astuple(after) == msgspec.structs.astuple(before)


# ------------------------------------------------------------------------------------------- words and tokens


def word(text: str, start: float, end: float) -> Word:
    return Word(text, start, end, 0.5)


def times(segment: Segment) -> list[tuple[str, float, float]]:
    return [(each.word, each.start, each.end) for each in segment.words or ()]


def test_words_stay_within_their_segment_and_never_go_back() -> None:
    words = (word(" a", -1.0, 0.4), word(" b", 0.3, 0.9), word(" c", 0.9, 0.2), word(" d", 1.8, 7.0))
    first, second = transcript(
        said(0.0, 2.0, " a b c d", words=words), said(1.5, 30.0, " e", words=(word(" e", 1.6, 31.0),)), duration=4.0
    ).segments
    assert times(first) == [(" a", 0.0, 0.4), (" b", 0.4, 0.9), (" c", 0.9, 0.9), (" d", 1.8, 2.0)]
    assert (second.start, second.end, times(second)) == (2.0, 4.0, [(" e", 2.0, 4.0)])


def test_words_joined_are_the_segment_s_text_without_half_characters() -> None:
    words = (word(" 日\ufffd", 0.0, 0.5), word("\ufffd", 0.5, 0.6), word("本", 0.6, 0.9))
    (segment,) = transcript(said(0.0, 1.0, " 日\ufffd\ufffd本", words=words)).segments
    assert times(segment) == [(" 日", 0.0, 0.5), ("本", 0.6, 0.9)]
    assert "".join(each.word for each in segment.words or ()) == segment.text


def test_verbose_json_has_words_twice_when_they_were_asked_for() -> None:
    given = (said(0, 1, " Hi", words=(word(" Hi", 0.1, 0.9),)), said(1, 2, " you", words=(word(" you", 1.0, 1.5),)))
    body = json.loads(written("verbose_json", *given, words=True))
    hi = {"word": " Hi", "start": 0.1, "end": 0.9, "probability": 0.5}
    you = {"word": " you", "start": 1.0, "end": 1.5, "probability": 0.5}
    assert body["words"] == [hi, you]
    assert [segment["words"] for segment in body["segments"]] == [[hi], [you]]
    assert json.loads(written("verbose_json", words=True))["words"] == []


def test_no_words_are_told_that_were_not_asked_for() -> None:
    body = json.loads(written("verbose_json", [0, 1, " Hi"]))
    assert "words" not in body
    assert "words" not in body["segments"][0]


TOKENS = (TokenLogprob(" H\ufffd", b" H\xc3", -0.25), TokenLogprob("\ufffd", b"\xa9", -1.5))
TOLD = [
    {"token": " H\ufffd", "logprob": -0.25, "bytes": [32, 72, 195]},
    {"token": "\ufffd", "logprob": -1.5, "bytes": [169]},
]


@pytest.mark.parametrize("name", ["json", "verbose_json"])
def test_token_log_probabilities_are_told_as_the_official_api_does(name: str) -> None:
    given = (said(0, 1, " Hé", logprobs=TOKENS[:1]), said(1, 2, "", logprobs=TOKENS[1:]))
    assert json.loads(written(name, *given, logprobs=True))["logprobs"] == TOLD
    assert json.loads(written(name, logprobs=True))["logprobs"] == []
    assert "logprobs" not in json.loads(written(name, [0, 1, " Hé"]))


# ------------------------------------------------------------------------------------------------- streams


def deltas(whole: Transcript) -> list[Any]:
    adding = Deltas()
    return [delta for segment in whole.segments if (delta := adding.add(segment))]


@pytest.mark.parametrize(
    "texts",
    [
        [" And so", " my fellow", " Americans."],
        ["And so"],
        ["  And", " so  ", "", "   ", " my ", "\n"],
        [" ", "", " And", "so"],
        ["日本", "語"],
        [" \u3000", "\u3000日 ", "\ufeff", " \ufffd本\u2028"],
        [],
        [" ", "  "],
    ],
)
def test_deltas_joined_are_the_text(texts: list[str]) -> None:
    whole = transcript(*([number, number + 1, text] for number, text in enumerate(texts)))
    told = [delta["delta"] for delta in deltas(whole)]
    assert "".join(told) == whole.text
    assert all(told)
    assert not told or told[0] == told[0].lstrip()


def test_a_delta_has_its_segment_s_number_and_times_and_what_was_asked_for() -> None:
    whole = transcript([0, 1, " "], said(1, 2, " Hé", words=(word(" Hé", 1.0, 1.5),), logprobs=TOKENS), [2, 3, " you"])
    assert json.loads(msgspec.json.encode(deltas(whole))) == [
        {
            "type": "transcript.text.delta",
            "delta": "Hé",
            "segment": {
                "id": 1,
                "start": 1.0,
                "end": 2.0,
                "words": [{"word": " Hé", "start": 1.0, "end": 1.5, "probability": 0.5}],
            },
            "logprobs": TOLD,
        },
        {"type": "transcript.text.delta", "delta": " you", "segment": {"id": 2, "start": 2.0, "end": 3.0}},
    ]


def test_progress_is_told_in_seconds() -> None:
    assert transcripts.progress(Progress(29.98, 60.0)) == {"type": "transcript.progress", "done": 29.98, "total": 60.0}


def test_done_has_the_members_of_json() -> None:
    whole = transcript([0, 1, " Hello"])
    members = transcripts.done(whole, "json")
    assert members.pop("type") == "transcript.text.done"
    assert msgspec.json.encode(members) == FORMATS["json"].write(whole)


def test_done_has_the_members_of_verbose_json() -> None:
    whole = transcript(said(0, 1, " Hello", words=()), words=True)
    members = transcripts.done(whole, "verbose_json")
    assert members.pop("type") == "transcript.text.done"
    assert msgspec.json.encode(members) == FORMATS["verbose_json"].write(whole)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("text", "Hello\n"),
        ("srt", "1\n00:00:00,000 --> 00:00:01,000\nHello\n"),
        ("vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nHello\n"),
    ],
)
def test_done_has_the_body_in_the_other_formats(name: str, body: str) -> None:
    members = transcripts.done(transcript([0, 1, " Hello"]), name)
    assert (members["text"], members["body"]) == ("Hello", body)
    assert set(members) == {"type", "text", "usage", "starling", "body"}
