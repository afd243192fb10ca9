"""What a client may ask of a session: a file's fields, the session's own, and what makes no sense in one."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import InvalidValue, UnsupportedValue
from protocol.jobs import Decoding
from service.dictation import request
from service.dictation.spec import Spec
from service.forms import Entry, Given


def given(fields: dict[str, Any]) -> Given:
    return Given(tuple(Entry(name, value) for name, value in fields.items()), form=False)


def parsed(**fields: Any) -> request.SessionRequest:
    return request.parse(given(fields))[0]


def spec(**fields: Any) -> Spec:
    return parsed(**fields).spec("s", 1, "m")


def test_nothing_asked_for_means_the_defaults() -> None:
    assert spec() == Spec(
        id="s",
        created=1,
        model="m",
        task="transcribe",
        segmentation="vad",
        vad_silence_ms=500,
        vad_threshold=0.5,
        vad_min_speech_ms=250,
        partials=False,
        response_format="json",
        decoding=Decoding(audio_ctx="auto", silence_rule=True),
    )


def test_the_session_s_own_fields_are_kept() -> None:
    asked = spec(
        task="translate",
        segmentation="window",
        vad_silence_ms=100,
        vad_threshold=0.3,
        vad_min_speech_ms=0,
        partials=True,
        response_format="verbose_json",
    )
    assert (asked.task, asked.segmentation, asked.vad_silence_ms) == ("translate", "window", 100)
    assert (asked.vad_threshold, asked.vad_min_speech_ms) == (0.3, 0)
    assert (asked.partials, asked.response_format) == (True, "verbose_json")


def test_every_field_about_decoding_is_kept() -> None:
    decoding = spec(
        language="German",
        prompt="before",
        keywords=["Starling"],
        temperature=[0.2, 0.4],
        best_of=3,
        length_penalty=0.5,
        patience=2,
        condition_on_previous_text=False,
        no_speech_threshold="off",
        logprob_threshold=-2.0,
        compression_ratio_threshold=3.0,
        without_timestamps=True,
        audio_ctx=700,
        hallucination_silence_threshold=2.0,
        response_format="verbose_json",
        timestamp_granularities=["word"],
        include=["logprobs"],
    ).decoding
    assert decoding == Decoding(
        language="de",
        prompt="before",
        vocabulary=("Starling",),
        temperature=(0.2, 0.4),
        best_of=3,
        length_penalty=0.5,
        patience=2,
        condition_on_previous_text=False,
        no_speech_threshold=None,
        logprob_threshold=-2.0,
        compression_ratio_threshold=3.0,
        without_timestamps=True,
        audio_ctx=700,
        hallucination_silence_threshold=2.0,
        words=True,
        logprobs=True,
        silence_rule=True,
    )


def test_words_need_verbose_json_as_a_file_s_do_and_nothing_is_said_of_streams() -> None:
    with pytest.raises(InvalidValue) as refused:
        parsed(timestamp_granularities=["word"])
    assert refused.value.param == "timestamp_granularities"
    assert refused.value.message == "timestamp_granularities can hold word only with response_format verbose_json"
    assert spec(response_format="verbose_json", timestamp_granularities=["word"]).decoding.words is True
    assert spec(timestamp_granularities=["segment"]).decoding.words is False


@pytest.mark.parametrize("name", ["file", "stream", "silence_rule", "seed", "colour"])
def test_an_unknown_field_is_ignored_and_told(name: str) -> None:
    assert request.parse(given({name: True})) == (request.SessionRequest(), [name])


@pytest.mark.parametrize("name", list(request.NOT_IN_A_SESSION))
def test_the_default_of_what_makes_no_sense_in_a_session_is_no_fault(name: str) -> None:
    assert parsed(**{name: None}) == request.SessionRequest()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chunking_strategy": "auto"}, "chunking_strategy"),
        ({"vad_trim": True}, "vad_trim"),
        ({"vad": True, "segmentation": "window"}, "vad"),
        ({"response_format": "srt"}, "response_format"),
        ({"response_format": "text"}, "response_format"),
        ({"segmentation": "words"}, "segmentation"),
        ({"task": "summarise"}, "task"),
        ({"partials": []}, "partials"),
        ({"vad_silence_ms": []}, "vad_silence_ms"),
        ({"vad_silence_ms": 99}, "vad_silence_ms"),
        ({"vad_silence_ms": 5001}, "vad_silence_ms"),
        ({"vad_silence_ms": 500.5}, "vad_silence_ms"),
        ({"partials": "often"}, "partials"),
        ({"audio_ctx": 63}, "audio_ctx"),
        ({"beam_size": 17}, "beam_size"),
        ({"language": "klingon"}, "language"),
        ({"language": "de", "languages": ["en"]}, "languages"),
        ({"hallucination_silence_threshold": 2}, "hallucination_silence_threshold"),
    ],
)
def test_a_known_field_with_a_wrong_value_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        parsed(**fields)
    assert refused.value.param == param


def test_the_reference_s_own_transcribe_cannot_be_had_in_a_session() -> None:
    with pytest.raises(UnsupportedValue) as refused:
        parsed(faithful=True)
    assert refused.value.param == "faithful"


def test_asking_for_speech_alone_is_what_a_session_does_anyway() -> None:
    assert spec(vad=True) == spec()
