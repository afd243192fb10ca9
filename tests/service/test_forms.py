"""Forms and JSON into typed structs, and the words for what is wrong. The struct here is not one of the service's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, settings, strategies
from hypothesis import given as drawn
from msgspec import Meta

from protocol.errors import InvalidValue
from service import forms
from service.forms import Entry, Given


class Member(msgspec.Struct, frozen=True):
    kind: Literal["a"]
    level: Annotated[float, Meta(ge=0, le=1)] = 0.5


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "default"
    flag: bool = False
    count: Annotated[int, Meta(ge=1, le=16)] = 1
    ratio: Annotated[float, Meta(gt=0)] | None = 2.4
    colour: Literal["red", "blue"] = "red"
    size: Literal["auto"] | Annotated[int, Meta(ge=64, le=1500)] = 1500
    words: Annotated[tuple[str, ...], Meta(max_length=3)] = ()
    steps: tuple[Annotated[float, Meta(ge=0, le=1)], ...] = (0.0, 1.0)
    part: Literal["auto"] | Member | None = None


ALIASES = {"terms": "words"}

# How long one example takes is the machine's affair.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)


def form(*pairs: tuple[str, str]) -> Sample:
    return forms.decode(Sample, Given(tuple(Entry(*pair) for pair in pairs), form=True), ALIASES)[0]


def from_json(**members: Any) -> Sample:
    return forms.decode(Sample, Given(tuple(Entry(*pair) for pair in members.items()), form=False), ALIASES)[0]


def refusal(*pairs: tuple[str, str]) -> tuple[str, str | None]:
    with pytest.raises(InvalidValue) as caught:
        form(*pairs)
    return caught.value.message, caught.value.param


@pytest.mark.parametrize("text", ["true", "1", "yes", "on", "True", "YES", " on "])
def test_true_in_a_form(text: str) -> None:
    """REQ-11"""
    assert form(("flag", text)).flag is True


@pytest.mark.parametrize("text", ["false", "0", "no", "off", "False", "OFF"])
def test_false_in_a_form(text: str) -> None:
    assert form(("flag", text), ("flag", text)).flag is False


@pytest.mark.parametrize("field", ["name", "flag", "count", "ratio", "colour", "size", "words", "steps", "part"])
def test_an_empty_text_or_null_is_the_default(field: str) -> None:
    assert form((field, "")) == Sample()
    assert from_json(**{field: None}) == Sample()


@pytest.mark.parametrize(("text", "value"), [("0.5", 0.5), ("1e-3", 0.001), (".5", 0.5), ("2.", 2.0), ("+3", 3.0)])
def test_numbers_in_a_form_are_decimal(text: str, value: float) -> None:
    assert form(("ratio", text)).ratio == value


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "Infinity", "1e999", "0x10", "1_0", "hot", "1,5", "٣"])
def test_what_is_no_decimal_number_is_refused(text: str) -> None:
    assert refusal(("ratio", text)) == (f'ratio must be a number over 0 or "off", not {text!r}', "ratio")


@pytest.mark.parametrize("text", ["1.0", "1.5", "0", "17", "-1", "ten", "1_0", "9" * 5000])
def test_what_is_no_integer_within_the_limits_is_refused(text: str) -> None:
    message, param = refusal(("count", text))
    assert message.startswith("count must be an integer from 1 to 16, not '")
    assert len(message) < 200
    assert param == "count"


def test_off_ends_a_threshold() -> None:
    assert form(("ratio", "OFF")).ratio is None
    assert from_json(ratio="off").ratio is None


def test_off_is_no_number_where_there_is_no_threshold() -> None:
    assert refusal(("count", "off"))[1] == "count"


def test_a_choice_is_refused_with_what_there_is_to_choose() -> None:
    assert refusal(("colour", "green")) == ("colour must be one of blue, red, not 'green'", "colour")


def test_a_word_or_a_number() -> None:
    assert (form(("size", "auto")).size, form(("size", "64")).size) == ("auto", 64)
    assert refusal(("size", "63"))[0] == "size must be auto or an integer from 64 to 1500, not '63'"


@pytest.mark.parametrize(
    "pairs",
    [
        [("words", "a, b")],
        [("words[]", "a"), ("words[]", "b")],
        [("words", "a"), ("words", "b")],
        [("words[0]", "a"), ("words[1]", "b")],
        [("terms", "a"), ("words[]", "b")],
        [("terms", "a"), ("words", "b,")],
        [("terms[]", "a,"), ("terms[]", ""), ("words", "b")],
    ],
)
def test_a_list_however_it_is_sent(pairs: list[tuple[str, str]]) -> None:
    expected = ("a,", "b") if pairs[0][1] == "a," else ("a", "b")
    assert form(*pairs).words == expected


def test_a_list_in_json_and_a_text_in_its_place() -> None:
    assert from_json(words=["a", "b, c"]).words == ("a", "b, c")
    assert from_json(words="a, b").words == ("a", "b")
    assert from_json(words=["a", ""], terms="b").words == ("a", "b")
    assert from_json(words=["a, b"], terms="c, d").words == ("a, b", "c", "d")
    assert from_json(words=[]).words == ()


def test_a_list_that_is_too_long_is_refused_under_the_name_that_was_used() -> None:
    message, param = refusal(("terms", "a,b,c,d"))
    assert (message, param) == ("terms must be text, or a list of at most 3 such, not 'a,b,c,d'", "terms")


def test_a_list_of_numbers() -> None:
    assert form(("steps", "0,0.5")).steps == (0.0, 0.5)
    assert from_json(steps=1).steps == (1.0,)
    assert refusal(("steps", "0,2"))[0] == "steps must be a number from 0 to 1, or a list of such, not '0,2'"


@pytest.mark.parametrize(
    "pairs", [[("part[kind]", "a"), ("part[level]", "0.25")], [("part", '{"kind":"a","level":0.25}')]]
)
def test_an_object_by_its_members_or_as_json(pairs: list[tuple[str, str]]) -> None:
    assert form(*pairs).part == Member("a", 0.25)


def test_an_object_that_is_wrong_is_refused() -> None:
    assert refusal(("part[kind]", "a"), ("part[level]", "7"))[1] == "part"
    assert refusal(("part[level]", "0.1"))[1] == "part"
    assert refusal(("part", "{"))[1] == "part"
    assert refusal(("part", "auto"), ("part[kind]", "a")) == ("part was given as a whole and in parts", "part")


def test_the_same_field_twice_is_fine_only_with_one_value() -> None:
    assert form(("count", "3"), ("count", "3")).count == 3
    assert refusal(("count", "3"), ("count", "4")) == ("count was given 2 times with different values", "count")


def test_json_has_types_of_its_own() -> None:
    assert from_json(flag=True, count=2, ratio=1).ratio == 1.0
    for wrong in ({"flag": "true"}, {"flag": 1}, {"count": "2"}, {"count": True}, {"ratio": "1"}, {"name": 7}):
        with pytest.raises(InvalidValue):
            from_json(**wrong)


@pytest.mark.parametrize("field", ["flag", "count", "ratio", "colour", "name", "size", "part"])
def test_an_empty_list_is_no_value_of_a_field_that_is_none(field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        from_json(**{field: []})
    assert (refused.value.param, refused.value.message[-8:]) == (field, "not '[]'")


def test_a_value_is_cut_at_a_hundred_characters() -> None:
    message, _ = refusal(("colour", "x" * 101))
    assert message == f"colour must be one of blue, red, not '{'x' * 100}…'"


def test_text_that_is_no_utf8_is_refused_only_in_a_known_field() -> None:
    assert refusal(("name", "caf\udce9")) == ("name is no valid UTF-8", "name")
    assert form(("other", "caf\udce9")) == Sample()


def test_unknown_fields_are_told() -> None:
    entries = (Entry("count", "3"), Entry("user", "me"), Entry("count[x]", "1"), Entry("a b,c", ""), Entry("", ""))
    sample, ignored = forms.decode(Sample, Given(entries, form=True), ALIASES)
    assert sample.count == 3
    assert ignored == ["user", "count[x]", "a b,c", ""]


def test_the_header_of_ignored_names_is_escaped_and_short() -> None:
    assert forms.ignored_header([]) is None
    assert forms.ignored_header(["", "user", ""]) == '"", user'
    assert forms.ignored_header(["user", "user", "a b,c", "ü\r\n", "x[y]"]) == "user, a%20b%2Cc, %C3%BC%0D%0A, x[y]"
    assert forms.ignored_header(f"f{number}" for number in range(99)) == ", ".join(f"f{number}" for number in range(20))


@unhurried
@drawn(
    strategies.lists(
        strategies.tuples(strategies.sampled_from([*Sample.__struct_fields__, "part[level]"]), strategies.text())
    )
)
def test_any_text_is_read_or_refused(pairs: list[tuple[str, str]]) -> None:
    try:
        form(*pairs)
    except InvalidValue as error:
        assert error.param in Sample.__struct_fields__


Json = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
    max_leaves=5,
)


@unhurried
@drawn(strategies.dictionaries(strategies.sampled_from(Sample.__struct_fields__), Json))
def test_any_json_is_read_or_refused(members: dict[str, Any]) -> None:
    try:
        from_json(**members)
    except InvalidValue as error:
        assert error.param in Sample.__struct_fields__
