"""Every field of a transcript's request: its default, its limits, its rules, and what is not to be had yet."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidValue, UnsupportedTask, UnsupportedValue
from protocol.events import Model
from protocol.jobs import TEMPERATURES, Decoding
from service import requests
from service.forms import Entry, Given

ENGLISH = Model("tiny.en", "whisper", ("en",), False, 1, "float32")
MULTILINGUAL = Model("base", "whisper", ("en", "de", "fr"), True, 1, "float32")


def form(*pairs: tuple[str, str]) -> requests.TranscriptRequest:
    return requests.parse(Given(tuple(Entry(*pair) for pair in pairs), form=True))[0]


def from_json(**members: Any) -> requests.TranscriptRequest:
    return requests.parse(Given(tuple(Entry(*pair) for pair in members.items()), form=False))[0]


def test_nothing_asked_is_the_protocols_defaults() -> None:
    request = form()
    assert request.decoding == Decoding(silence_rule=True)
    assert (request.model, request.response_format, request.stream) == ("", "json", False)


@pytest.mark.parametrize("value", ["", "auto", "   ", "AUTO"])
def test_language_may_be_left_to_detection(value: str) -> None:
    """REQ-06"""
    assert form(("language", value)).language is None


@pytest.mark.parametrize("value", ["de", "german", "de-AT", "DE_at"])
def test_language_becomes_a_code(value: str) -> None:
    assert form(("language", value)).decoding.language == "de"


def test_languages_become_codes_once_each() -> None:
    assert form(("languages[]", "german"), ("languages[]", "en-GB"), ("languages[]", "de")).languages == ("de", "en")
    assert form(("languages", "de,fr")).decoding.languages == ("de", "fr")


def test_a_lone_temperature_of_zero_is_the_ladder_and_a_list_is_itself() -> None:
    for zero in ("0", " 0.00", "0.000", "-0", "00", "0e0", "+0", ".0"):
        assert form(("temperature", zero)).temperature == TEMPERATURES
    assert from_json(temperature=0).temperature == TEMPERATURES
    assert form(("temperature", "0.4")).temperature == (0.4,)
    assert form(("temperature", "0,0.5")).temperature == (0.0, 0.5)
    assert form(("temperature", "0"), ("temperature", "0.5")).temperature == (0.0, 0.5)
    assert form(("temperature[]", "0")).temperature == (0.0,)
    assert from_json(temperature=[0]).temperature == (0.0,)


def test_thresholds_can_be_off() -> None:
    request = form(("no_speech_threshold", "off"), ("logprob_threshold", "off"), ("compression_ratio_threshold", "off"))
    decoding = request.decoding
    assert decoding.no_speech_threshold is None
    assert decoding.logprob_threshold is None
    assert decoding.compression_ratio_threshold is None


def test_a_long_prompt_keeps_its_end() -> None:
    """REQ-15"""
    prompt = form(("prompt", "x" * 100_000 + "end")).prompt
    assert prompt is not None
    assert (len(prompt), prompt[-4:]) == (32_768, "xend")


def test_the_rest_reaches_the_decoder() -> None:
    decoding = form(
        ("prompt", "Names: Ada"),
        ("best_of", "3"),
        ("length_penalty", "0.5"),
        ("condition_on_previous_text", "no"),
        ("without_timestamps", "1"),
        ("beam_size", "5"),
        ("patience", "1.5"),
        ("audio_ctx", "auto"),
        ("hallucination_silence_threshold", "2"),
        ("timestamp_granularities[]", "word"),
        ("response_format", "verbose_json"),
        ("include[]", "logprobs"),
    ).decoding
    assert decoding == Decoding(
        prompt="Names: Ada",
        best_of=3,
        length_penalty=0.5,
        condition_on_previous_text=False,
        without_timestamps=True,
        beam_size=5,
        patience=1.5,
        audio_ctx="auto",
        hallucination_silence_threshold=2.0,
        words=True,
        logprobs=True,
        silence_rule=True,
    )


def test_terms_under_any_name_are_one_list_in_order() -> None:
    request = form(("hotwords", "Ada, Bob"), ("keywords[]", "Cy, D"), ("vocabulary", "E"), ("keywords[]", "F"))
    assert request.decoding.vocabulary == ("Ada", "Bob", "Cy, D", "E", "F")
    assert from_json(vocabulary=["Ada", "B, C"], hotwords="D, E").decoding.vocabulary == ("Ada", "B, C", "D", "E")


@pytest.mark.parametrize("name", ["vocabulary", "keywords", "hotwords"])
def test_a_long_vocabulary_is_refused_under_the_name_that_was_used(name: str) -> None:
    for terms in (["x"] * 8_193, ["x" * 16_385]):
        with pytest.raises(InvalidValue) as caught:
            from_json(**{name: terms})
        assert caught.value.param == name
    assert len(from_json(**{name: ["x"] * 8_192}).decoding.vocabulary) == 8_192
    assert from_json(**{name: ["x" * 16_384]}).decoding.vocabulary == ("x" * 16_384,)


def test_speech_is_looked_for_only_when_that_is_asked_for() -> None:
    assert not form(("vad_threshold", "0.9"), ("vad_min_speech_ms", "0")).listens
    for asked in (("vad", "true"), ("vad_trim", "yes"), ("chunking_strategy", "auto")):
        assert form(asked).listens


def test_auto_is_the_official_server_vad_s_defaults() -> None:
    spelt = {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 200}
    assert form(("chunking_strategy", "auto")).server_vad == from_json(chunking_strategy=spelt).server_vad
    assert form().server_vad is None


def test_a_strategy_in_the_form_s_parts() -> None:
    parts = [("type", "server_vad"), ("threshold", "0.25"), ("prefix_padding_ms", "500"), ("silence_duration_ms", "1")]
    request = form(*((f"chunking_strategy[{name}]", value) for name, value in parts))
    assert request.server_vad == requests.ServerVad(
        type="server_vad", threshold=0.25, prefix_padding_ms=500, silence_duration_ms=1
    )
    assert request.speech_threshold == 0.25


@pytest.mark.parametrize(("value", "means"), [("64", 64), ("1500", 1500), ("auto", "auto"), ("", 1500)])
def test_audio_ctx_is_a_number_of_frames_or_auto(value: str, means: object) -> None:
    assert form(("audio_ctx", value)).decoding.audio_ctx == means


def test_the_oracle_knows_no_silence_rule() -> None:
    assert form(("faithful", "true")).decoding == Decoding()


def test_beams_at_zero_and_samples_above() -> None:
    request = form(("beam_size", "16"), ("temperature", "0,0.4"))
    assert (request.decoding.beam_size, request.decoding.temperature) == (16, (0.0, 0.4))
    assert form(("beam_size", "2")).decoding.temperature == TEMPERATURES
    assert form(("beam_size", "2"), ("temperature", "0")).decoding.temperature == TEMPERATURES


def test_an_unknown_member_is_named_like_any_unknown_field() -> None:
    parts = (Entry("chunking_strategy[type]", "server_vad"), Entry("chunking_strategy[silence_ms]", "900"))
    request, ignored = requests.parse(Given(parts, form=True))
    assert (ignored, request.server_vad is not None) == (["chunking_strategy[silence_ms]"], True)
    for given, in_form in (({"type": "server_vad", "foo": 2}, False), ('{"type": "server_vad", "foo": 2}', True)):
        request, ignored = requests.parse(Given((Entry("chunking_strategy", given),), form=in_form))
        assert (ignored, request.server_vad is not None) == (["chunking_strategy.foo"], True)


@pytest.mark.parametrize("name", ["words", "logprobs", "silence_rule", "seed", "seed[]"])
def test_what_is_only_between_service_and_worker_is_unknown_to_clients(name: str) -> None:
    request, ignored = requests.parse(Given((Entry("x", "1"), Entry(name, "7"), Entry("y", "1")), form=True))
    assert request.decoding == form().decoding
    assert ignored == ["x", name, "y"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("language", "klingon"),
        ("languages[]", "en,klingon"),
        ("languages[]", "auto"),
        ("temperature", "1.1"),
        ("temperature", "-0.1"),
        ("temperature", "nan"),
        ("temperature", "0,0.2,hot"),
        ("temperature", ",".join(["0"] * 17)),
        ("beam_size", "99"),
        ("beam_size", "0"),
        ("beam_size", "1.5"),
        ("best_of", "17"),
        ("patience", "0"),
        ("patience", "5.1"),
        ("length_penalty", "1.1"),
        ("response_format", "xml"),
        ("response_format", "JSON"),
        ("timestamp_granularities[]", "letter"),
        ("stream", "maybe"),
        ("condition_on_previous_text", "2"),
        ("no_speech_threshold", "1.5"),
        ("logprob_threshold", "0.1"),
        ("compression_ratio_threshold", "0"),
        ("without_timestamps", "on!"),
        ("hallucination_silence_threshold", "-1"),
        ("hallucination_silence_threshold", "inf"),
        ("vad", "si"),
        ("vad_threshold", "0"),
        ("vad_threshold", "1"),
        ("vad_min_speech_ms", "10001"),
        ("vad_trim", "x"),
        ("vocabulary", "x" * 16_385),
        ("hotwords", "ü" * 8_193),
        ("keywords[]", ",".join(["x"] * 8_193)),
        ("chunking_strategy", "manual"),
        ("chunking_strategy[type]", "client_vad"),
        ("audio_ctx", "63"),
        ("audio_ctx", "1501"),
        ("audio_ctx", "full"),
        ("audio_ctx", "100.5"),
        ("include[]", "tokens"),
        ("faithful", "perhaps"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        form((name, value))
    assert caught.value.param == name.split("[")[0]
    assert caught.value.message.startswith(f"{caught.value.param} must be ")
    assert len(caught.value.message) < 500


def test_the_message_says_field_value_and_what_is_allowed() -> None:
    with pytest.raises(InvalidValue, match=r"^beam_size must be an integer from 1 to 16, not '99'$"):
        form(("beam_size", "99"))


@pytest.mark.parametrize(
    ("pairs", "param"),
    [
        ([("language", "de"), ("languages[]", "en")], "languages"),
        ([("timestamp_granularities[]", "word")], "timestamp_granularities"),
        ([("timestamp_granularities[]", "word"), ("response_format", "srt")], "timestamp_granularities"),
        ([("hallucination_silence_threshold", "2")], "hallucination_silence_threshold"),
        ([("hallucination_silence_threshold", "0"), ("stream", "true")], "hallucination_silence_threshold"),
        ([("include[]", "logprobs"), ("response_format", "srt")], "include"),
        ([("include[]", "logprobs"), ("response_format", "text")], "include"),
        ([("temperature", "0.5"), ("beam_size", "2")], "beam_size"),
        ([("temperature", "0.5,0"), ("beam_size", "2")], "beam_size"),
        ([("faithful", "true"), ("beam_size", "2")], "beam_size"),
        ([("faithful", "true"), ("patience", "2")], "patience"),
        ([("faithful", "true"), ("audio_ctx", "auto")], "audio_ctx"),
        ([("faithful", "true"), ("languages[]", "de")], "languages"),
        ([("faithful", "true"), ("chunking_strategy", "auto")], "chunking_strategy"),
        ([("faithful", "true"), ("include[]", "logprobs")], "include"),
    ],
)
def test_fields_that_exclude_each_other(pairs: list[tuple[str, str]], param: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        form(*pairs)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", "diarized_json"),
        ("known_speaker_names[]", "Ada"),
        ("known_speaker_references[]", "data:audio/wav;base64,AAAA"),
    ],
)
def test_what_is_not_there_yet_is_refused_and_never_ignored(name: str, value: str) -> None:
    with pytest.raises(UnsupportedValue, match=r"is not yet supported$") as caught:
        form((name, value))
    assert caught.value.param == name.split("[")[0]


@pytest.mark.parametrize(
    "pairs",
    [
        [("response_format", "verbose_json")],
        [("stream", "true")],
        [("stream", "true"), ("response_format", "srt"), ("include[]", "logprobs")],
    ],
)
def test_words_may_be_asked_for_where_there_is_room(pairs: list[tuple[str, str]]) -> None:
    """REQ-08"""
    assert form(("timestamp_granularities[]", "segment"), ("timestamp_granularities[]", "word"), *pairs).decoding.words


def test_wrong_comes_before_unsupported() -> None:
    with pytest.raises(InvalidValue, match=r"^temperature must be"):
        form(("known_speaker_names[]", "Ada"), ("response_format", "diarized_json"), ("temperature", "hot"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream", "false"),
        ("stream", "no"),
        ("vad", "false"),
        ("vad_threshold", "0.5"),
        ("vad_min_speech_ms", "250"),
        ("beam_size", "1"),
        ("patience", "1"),
        ("audio_ctx", "1500"),
        ("hallucination_silence_threshold", "off"),
        ("include[]", ""),
        ("vocabulary", ""),
        ("timestamp_granularities[]", "segment"),
        ("timestamp_granularities[]", ""),
        ("faithful", "true"),
    ],
)
def test_the_default_may_be_said_aloud(name: str, value: str) -> None:
    assert msgspec.structs.replace(form((name, value)).decoding, silence_rule=False) == Decoding()


def test_every_field_may_be_null_alone_or_all_at_once() -> None:
    """REQ-12"""
    names = requests.TranscriptRequest.__struct_fields__
    assert from_json(**dict.fromkeys(names)) == requests.TranscriptRequest()
    for name in names:
        assert from_json(**{name: None}) == requests.TranscriptRequest()


def test_unknown_fields_are_reported_and_change_nothing() -> None:
    given = Given((Entry("user", "me"), Entry("language", "de"), Entry("diarize", "1")), form=True)
    request, ignored = requests.parse(given)
    assert (request.language, ignored) == ("de", ["user", "diarize"])


def test_an_english_model_refuses_other_languages() -> None:
    requests.check_model(form(("language", "en-GB")), "transcribe", ENGLISH)
    for pair in (("language", "de"), ("languages[]", "en,de")):
        with pytest.raises(InvalidValue, match=r"language that the model tiny.en knows \(en\), not German$"):
            requests.check_model(form(pair), "transcribe", ENGLISH)


def test_a_model_that_was_not_trained_for_it_does_not_translate() -> None:
    requests.check_model(form(), "translate", MULTILINGUAL)
    with pytest.raises(UnsupportedTask):
        requests.check_model(form(), "translate", ENGLISH)


def test_the_limits_are_the_protocols_own() -> None:
    assert issubclass(requests.TranscriptRequest, Decoding)
