"""Shapes: what is compiled, what is refused and in which words, and how an answer is led through one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from protocol.errors import UnsupportedSchema
from protocol.jobs import Shape

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
NESTED = {"type": "object", "properties": {"in": {"$ref": "#/$defs/a"}}, "required": ["in"]}
"""Without an end."""


@pytest.fixture(scope="module")
def tokenizer(fast_blas: Any) -> Any:
    from tests.workers.llm.toy_tokenizers import byte_level

    return byte_level('{"', '":', "name", "<tool_call>")


@pytest.fixture
def grammars(tokenizer: Any) -> Any:
    from workers.llm.grammar import Grammars

    return Grammars(tokenizer, len(tokenizer) + 5, [tokenizer.eos_token_id])


def json_shape(schema: Any, **fields: Any) -> Shape:
    return Shape(kind="json", text=json.dumps(schema), param="response_format", **fields)


def compiled(grammars: Any, shape: Shape) -> Any:
    asked = grammars.ask(shape)
    asked.wait(20)
    return asked.grammar()


def guide(grammars: Any, shape: Shape) -> Any:
    from workers.llm.guide import Guide

    return Guide(compiled(grammars, shape))


def say(led: Any, tokenizer: Any, text: str) -> None:
    for token in tokenizer.encode(text, add_special_tokens=False):
        allowed = led.allowed()
        assert allowed is None or allowed[token], (text, tokenizer.decode([token]))
        led.take(token)


def text_of(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids))


def choices(led: Any, tokenizer: Any) -> set[str]:
    """What may come next, each token's text."""
    return {text_of(tokenizer, [int(token)]) for token in led.allowed().nonzero()[0]}


def test_what_a_schema_determines_is_forced(grammars: Any, tokenizer: Any) -> None:
    led = guide(grammars, json_shape(PERSON))
    assert text_of(tokenizer, led.forced()) == '{"name":'
    for token in led.forced():
        led.take(token)
    say(led, tokenizer, '"Jo"')
    assert text_of(tokenizer, led.forced()).startswith(',"age')


def test_no_token_outside_the_schema_is_allowed(grammars: Any, tokenizer: Any) -> None:
    led = guide(grammars, json_shape(PERSON))
    say(led, tokenizer, '{"name":"Jo","age":')
    assert choices(led, tokenizer) == {*"-0123456789"}
    say(led, tokenizer, "4")
    assert choices(led, tokenizer) == {*"0123456789}"}
    assert not led.over
    say(led, tokenizer, "}")
    assert led.over


def test_an_end_of_text_is_allowed_where_the_shape_may_end(grammars: Any, tokenizer: Any) -> None:
    led = guide(grammars, Shape(kind="regex", text="[0-9]+"))
    assert not led.allowed()[tokenizer.eos_token_id]
    say(led, tokenizer, "7")
    assert led.allowed()[tokenizer.eos_token_id]
    assert not led.over


def test_the_mask_is_as_wide_as_the_logits_and_allows_nothing_beyond_the_vocabulary(
    grammars: Any, tokenizer: Any
) -> None:
    allowed = guide(grammars, Shape(kind="regex", text="(.|\n)*")).allowed()
    assert len(allowed) == len(tokenizer) + 5
    assert not allowed[len(tokenizer) :].any()


def test_logits_may_be_narrower_than_the_tokenizer_s_vocabulary(tokenizer: Any) -> None:
    """What only the tokenizer has is said in letters."""
    from workers.llm.grammar import Grammars

    fewer = len(tokenizer) - 1
    grammars = Grammars(tokenizer, fewer, [tokenizer.eos_token_id])
    assert len(guide(grammars, Shape(kind="regex", text="(.|\n)*")).allowed()) == fewer
    last = tokenizer.decode([fewer])
    said = guide(grammars, Shape(kind="choice", text=json.dumps([f"a{last}"]))).forced()
    assert max(said) < fewer and text_of(tokenizer, said) == f"a{last}"


def test_choices_are_taken_literally(grammars: Any, tokenizer: Any) -> None:
    words = ["a.b", 'say "é"\n', "red", "redder"]
    shape = Shape(kind="choice", text=json.dumps(words))
    for word in words:
        led = guide(grammars, shape)
        say(led, tokenizer, word)
        assert led.over or led.allowed()[tokenizer.eos_token_id]
    led = guide(grammars, shape)
    say(led, tokenizer, "a")
    assert choices(led, tokenizer) == {"."}


def test_many_thousand_choices_are_no_more_than_a_few(grammars: Any, tokenizer: Any) -> None:
    led = guide(grammars, Shape(kind="choice", text=json.dumps([f"{number:05}" for number in range(20_000)])))
    say(led, tokenizer, "19")
    assert choices(led, tokenizer) == {*"0123456789"}
    say(led, tokenizer, "999")
    assert led.over


@pytest.mark.parametrize("kind", ["json", "choice"])
def test_a_text_that_looks_like_a_special_token_is_forced_as_a_text(grammars: Any, tokenizer: Any, kind: Any) -> None:
    """Not as the token, which would end the answer."""
    text = json.dumps({"const": "a</s>"} if kind == "json" else ["a</s>"])
    led = guide(grammars, Shape(kind=kind, text=text))
    said: list[int] = []
    while not led.over and len(said) < 20:
        forced = led.forced()
        said.append(forced[0] if forced else int(led.allowed().nonzero()[0][0]))
        led.take(said[-1])
    assert tokenizer.eos_token_id not in said
    assert text_of(tokenizer, said) == ('"a</s>"' if kind == "json" else "a</s>")


def test_a_special_token_that_a_grammar_names_is_forced(grammars: Any, tokenizer: Any) -> None:
    begin = tokenizer.bos_token_id
    led = guide(grammars, Shape(kind="lark", text=f'start: "a" <[{begin}]> "b"'))
    assert led.forced() == [ord("a"), begin, ord("b")]


@pytest.mark.parametrize(
    "text", ['start: "a" /[0-9]+/ "."', 'root ::= "a" [0-9]+ "."', '?start: one\n?one: "a" /[0-9]+/ "."']
)
def test_grammars_come_in_lark_and_in_gbnf(grammars: Any, tokenizer: Any, text: str) -> None:
    led = guide(grammars, Shape(kind="lark", text=text))
    say(led, tokenizer, "a12.")
    assert led.over


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (json_shape({"type": "notatype"}), "notatype"),
        (json_shape({"$ref": "#/definitions/nowhere"}), "does not exist"),
        (json_shape({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (json_shape({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}), "uniqueItems"),
        (json_shape({"oneOf": [{"type": "number"}, {"type": "integer"}]}), "oneOf"),
        (json_shape({"enum": []}), "empty"),
        (json_shape({"$ref": "#"}), "no text"),
        (json_shape({"properties": {"a": {"type": "object", "minProperties": 2}}}), "minProperties"),
        (json_shape({"const": 2**53 + 1}), "9007199254740993"),
        (json_shape({"enum": [1, {"a": [-(2**60)]}]}), "2**53"),
        (json_shape({"type": "integer", "minimum": 2**53 + 1}), "2**53"),
        (json_shape({"type": "integer", "maximum": 2**53 + 3}), "2**53"),
        (json_shape({"type": "integer", "exclusiveMaximum": 2**60}), "2**53"),
        (json_shape({"type": "number", "maximum": 2**63 - 1}), "2**53"),
        (json_shape({"type": "integer", "minimum": 10**400}), "2**53"),
        (json_shape({"properties": {"a\u0001": {"type": "integer"}}}), "control characters"),
        (json_shape({"$defs": {"a": NESTED}, "$ref": "#/$defs/a"}), "Too many items"),
        # It shows with the first token of an answer only.
        (
            Shape(kind="lark", text=f"start: {' | '.join(f'{chr(34)}{number}{chr(34)}' for number in range(9000))}"),
            "items",
        ),
        (Shape(kind="lark", text=""), "Empty"),
        (json_shape({"type": "string", "pattern": "(?=a)b"}), "look-ahead"),
        (json_shape(7), ""),
        (Shape(kind="regex", text="a[b"), "unclosed"),
        (Shape(kind="regex", text=r"(a)\1"), "backreferences"),
        (Shape(kind="lark", text='start: "a" nowhere'), "nowhere"),
        (Shape(kind="lark", text="hello"), ""),
        (Shape(kind="lark", text='{"grammars": []}'), "Lark"),
        (Shape(kind="choice", text="[]"), ""),
    ],
)
def test_what_cannot_be_enforced_is_refused_and_says_why(grammars: Any, shape: Shape, reason: str) -> None:
    with pytest.raises(UnsupportedSchema) as refusal:
        compiled(grammars, shape)
    assert reason in refusal.value.message
    assert "cannot be enforced" in refusal.value.message and "\n" not in refusal.value.message
    assert refusal.value.param == shape.param


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        ({"type": "integer", "minimum": -(2**53), "maximum": 2**63 - 1}, str(2**63 - 1), str(2**63)),
        ({"type": "integer", "maximum": 2**64 - 1}, str(2**63 - 1), str(2**64)),
        ({"type": "integer", "exclusiveMaximum": 2**63}, str(2**63 - 1), str(2**63)),
        ({"const": 2**53}, str(2**53), str(2**53 + 1)),
    ],
)
def test_the_usual_bounds_of_whole_numbers_hold(
    grammars: Any, tokenizer: Any, schema: Any, fits: str, fails: str
) -> None:
    led = guide(grammars, json_shape(schema))
    assert led.fits(list(fits.encode())) == len(fits)
    failing = led.fits(list(fails.encode()))
    say(led, tokenizer, fails[:failing])
    assert failing < len(fails) or not led.allowed()[tokenizer.eos_token_id]


def deep(levels: int) -> str:
    return '{"type":"array","items":' * levels + '{"type":"string"}' + "}" * levels


@pytest.mark.parametrize(
    "schema",
    [
        json.dumps(schema)
        for schema in (
            {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(400)}},
            {"enum": [f"value {number}" for number in range(8000)]},
            {"type": "string", "maxLength": 10**9},
            {"type": "array", "items": {"type": "string"}, "minItems": 10**6},
            {"$ref": "#"},
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            {"type": "string", "pattern": "^(a{1000}){1000}$"},
            {"type": "string", "pattern": "(x+x+)+y"},
            {"allOf": [{"anyOf": [{"const": a}, {"const": -a}]} for a in range(20)]},
        )
    ]
    + [deep(100), deep(2000)],
    ids=range(11),
)
def test_a_monstrous_schema_takes_seconds_at_most(grammars: Any, schema: str) -> None:
    asked = grammars.ask(Shape(kind="json", text=schema))
    asked.wait(60)
    assert asked.done
    try:
        asked.grammar()
    except UnsupportedSchema as refusal:
        assert len(refusal.message) < 500


def chained(count: int, link: str, first: str, last: str) -> str:
    """A grammar in which each of so many rules leads to the next."""
    return "\n".join([first, *(link.format(each, each + 1) for each in range(count)), last.format(count)])


CHAINS = [
    Shape(kind="lark", text=chained(18_000, "r{}: r{}", "start: r0", 'r{}: "a"')),
    Shape(kind="lark", text=chained(9_000, 'T{}: "a" | "b" T{} "c"', "start: T0", 'T{}: "a"')),
    json_shape({"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(6000)}, "$ref": "#/$defs/d0"}),
    json_shape(
        {
            "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"minimum": n}]} for n in range(3500)},
            "$ref": "#/$defs/d0",
        }
    ),
]


@pytest.mark.parametrize("shape", CHAINS, ids=range(4))
def test_a_chain_of_references_does_not_take_the_process_along(grammars: Any, shape: Shape) -> None:
    asked = grammars.ask(shape)
    asked.wait(60)
    assert asked.done
    try:
        assert asked.grammar()
    except UnsupportedSchema as refusal:
        assert len(refusal.message) < 500


def test_a_grammar_in_gbnf_that_is_too_long_is_refused(grammars: Any) -> None:
    long = chained(3000, 'r{} ::= r{} | "x"', "root ::= r0", 'r{} ::= "a"')
    with pytest.raises(UnsupportedSchema, match="most in GBNF"):
        compiled(grammars, Shape(kind="lark", text=long))


def test_a_shape_that_is_too_long_is_not_even_looked_at(grammars: Any) -> None:
    with pytest.raises(UnsupportedSchema, match="bytes"):
        grammars.ask(Shape(kind="choice", text=json.dumps(["a" * 300_000])))
    assert len(grammars) == 0


def test_a_shape_is_compiled_once_and_refused_once(grammars: Any) -> None:
    for shape in (json_shape(PERSON), json_shape({"type": "notatype"})):
        first = grammars.ask(shape)
        first.wait(20)
        assert grammars.ask(shape).done
    assert compiled(grammars, json_shape(PERSON)) is compiled(grammars, json_shape(PERSON))


def test_the_shapes_kept_are_bounded_in_number_and_in_bytes(tokenizer: Any) -> None:
    from workers.llm.grammar import Grammars

    kept = Grammars(tokenizer, 300, [tokenizer.eos_token_id], entries=3, text_bytes=100)
    for number in range(5):
        kept.ask(Shape(kind="regex", text=f"a{number}"))
    assert len(kept) == 3
    kept.ask(Shape(kind="regex", text="b" * 90))
    assert len(kept) == 3
    last = kept.ask(Shape(kind="regex", text="c" * 95))
    assert len(kept) == 1
    last.wait(20)
    assert last.grammar()


def test_a_shape_that_nobody_waits_for_is_not_compiled(grammars: Any) -> None:
    asked = [grammars.ask(json_shape({"const": number})) for number in range(30)]
    again = grammars.ask(json_shape({"const": 29}))
    for each in asked:
        each.leave()
    again.wait(20)
    assert again.grammar()
    assert compiled(grammars, json_shape({"const": 28}))


CALL = Shape(
    kind="lark",
    text='start: "\\n{\\"name\\":\\"" /(add|sub)/ "\\",\\"n\\":" /[0-9]/ "}\\n</tool_call>"',
    trigger="<tool_call>",
)


def test_behind_a_trigger_the_shape_holds_and_elsewhere_it_does_not(grammars: Any, tokenizer: Any) -> None:
    led = guide(grammars, CALL)
    say(led, tokenizer, "I <b>call</b> it: ")
    assert led.allowed() is None and led.free
    say(led, tokenizer, "<tool_call>")
    assert not led.free
    assert text_of(tokenizer, led.forced()).startswith('\n{"')
    say(led, tokenizer, '\n{"name":"sub')
    assert choices(led, tokenizer) == {'"'}
    say(led, tokenizer, '","n":4}\n</tool_call>')
    assert led.free and not led.over
    say(led, tokenizer, "\nand <tool_call>\n")
    assert choices(led, tokenizer) <= {"{", '{"'}


def test_a_trigger_in_pieces_and_cut_across_tokens_counts_too(grammars: Any, tokenizer: Any) -> None:
    led = guide(grammars, CALL)
    for char in "<<tool_call":
        led.take(ord(char))
    assert led.allowed()[ord("x")] and led.allowed()[tokenizer.eos_token_id]
    led.take(ord(">"))
    assert choices(led, tokenizer) == {"\n"}


def test_an_answer_can_be_made_to_end_with_the_first_part(grammars: Any, tokenizer: Any) -> None:
    import msgspec

    led = guide(grammars, msgspec.structs.replace(CALL, again=False))
    say(led, tokenizer, 'x<tool_call>\n{"name":"add","n":4}\n</tool_call>')
    assert led.over


def test_a_schema_can_stand_behind_a_trigger(grammars: Any, tokenizer: Any) -> None:
    led = guide(grammars, json_shape(PERSON, trigger="JSON:"))
    say(led, tokenizer, 'JSON? JSON:{"name":"Jo","age":4}')
    assert led.free


def test_a_special_token_can_be_the_trigger(grammars: Any, tokenizer: Any) -> None:
    led = guide(grammars, json_shape(PERSON, trigger="<s>"))
    led.take(65)
    assert led.free
    led.take(tokenizer.convert_tokens_to_ids("<s>"))
    assert text_of(tokenizer, led.forced()) == '{"name":'


def test_a_tokenizer_without_a_description_works_as_well(fast_blas: Any) -> None:
    """Some come as code alone: then llguidance is told each token's bytes."""
    from tests.workers.llm.toy_tokenizers import byte_level
    from workers.llm.grammar import Grammars

    plain = byte_level("name")

    class Coded:
        """`plain` without the member that names its parts."""

        def __getattr__(self, name: str) -> Any:
            if name == "backend_tokenizer":
                raise AttributeError(name)
            return getattr(plain, name)

        def __len__(self) -> int:
            return len(plain)

    led = guide(Grammars(Coded(), len(plain), [plain.eos_token_id]), json_shape(PERSON))  # type: ignore[arg-type]
    say(led, plain, '{"name":"Jo","age":4}')
    assert led.over


@pytest.mark.parametrize(
    "shape",
    [json_shape(PERSON), Shape(kind="regex", text="a+(b|[0-9]{2})*"), Shape(kind="choice", text='["ab","ac","b"]')],
)
def test_a_token_asked_about_alone_may_come_where_the_mask_says_so(grammars: Any, tokenizer: Any, shape: Shape) -> None:
    led, chance = guide(grammars, shape), random.Random(1)
    for _ in range(30):
        for token in led.forced():
            led.take(token)
        if led.over:
            return
        allowed = led.allowed()
        able = [token for token in range(len(tokenizer)) if token != tokenizer.eos_token_id and allowed[token]]
        assert [token for token in range(len(tokenizer)) if token != tokenizer.eos_token_id and led.may(token)] == able
        if not able:
            return
        led.take(chance.choice(able))
