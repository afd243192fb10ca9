"""Conversations through chat templates, texts and ids: what the model reads, and what is refused instead."""

from __future__ import annotations

import inspect
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.errors import ContextLengthExceeded, InvalidValue
from protocol.jobs import Chat, ChatMessage, Complete
from tests.workers.llm import toy_tokenizers
from workers.llm import prompt
from workers.llm.prompt import RESERVED, Prompt

WINDOW = 1000

PLAIN = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
TOOLS = (
    "{% for message in messages %}{% if message.role == 'tool' %}[{{ message.tool_call_id }}: {{ message.content }}]"
    "{% else %}{{ message.role }}: {{ message.content }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.name }}({{ call.function.arguments.city }}){% endfor %}{% endif %}; {% endfor %}"
)
THINKING = "{{ messages[0].content }}<think>{% if not enable_thinking %}</think>{% endif %}\n"


@pytest.fixture(scope="module")
def tokenizer(fast_blas: Any) -> Any:
    return toy_tokenizers.byte_level(template=PLAIN, bos=True)


def with_template(template: str | None, **fields: Any) -> Any:
    return toy_tokenizers.byte_level(template=template, **fields)


def chat(*messages: tuple[str, str] | ChatMessage, **kwargs: Any) -> Chat:
    made = [each if isinstance(each, ChatMessage) else ChatMessage(role=each[0], content=each[1]) for each in messages]  # type: ignore[arg-type]
    return Chat(tuple(made), template_kwargs=kwargs)


def render(tokenizer: Any, job: Chat | Complete) -> Prompt:
    return prompt.render(tokenizer, job, window=WINDOW)


# Conversations.


def test_a_conversation_is_what_the_template_makes_of_it(tokenizer: Any) -> None:
    made = render(tokenizer, chat(("system", "be brief"), ("user", "hi")))
    assert made.text == "<s>system\nbe brief</s>\n<s>user\nhi</s>\n<s>assistant\n"
    assert not made.continues


def test_ids_are_those_of_the_rendering_with_nothing_added(tokenizer: Any) -> None:
    """No second beginning of text: the template's own is the only one."""
    made = render(tokenizer, chat(("user", "é")))
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert made.ids == (begin, *b"user\n\xc3\xa9", end, ord("\n"), begin, *b"assistant\n")
    assert made.ids == tuple(prompt.encode(tokenizer, str(made.text)))


def test_template_arguments_reach_the_template(fast_blas: Any) -> None:
    tokenizer = with_template("{{ messages[0].content }} {{ mood }} {{ reasoning_effort }}")
    assert render(tokenizer, chat(("user", "hi"), mood="calm", reasoning_effort="low")).text == "hi calm low"


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "tools", "continue_final_message", "self"])
def test_template_arguments_that_are_ours_are_refused(tokenizer: Any, name: str) -> None:
    with pytest.raises(InvalidValue, match=f"chat_template_kwargs must not set {name}") as refused:
        render(tokenizer, chat(("user", "hi"), **{name: "{{ 1 }}"}))
    assert refused.value.param == "chat_template_kwargs"


def test_every_argument_of_the_library_is_ours(fast_blas: Any) -> None:
    from transformers import PreTrainedTokenizerBase
    from transformers.utils.chat_template_utils import render_jinja_template

    taken: set[str] = set()
    for function in (PreTrainedTokenizerBase.apply_chat_template, render_jinja_template):
        taken |= inspect.signature(function).parameters.keys()
    assert taken - {"self", "kwargs"} <= RESERVED


def test_a_template_that_raises_is_told_in_its_own_words(fast_blas: Any) -> None:
    tokenizer = with_template("{{ raise_exception('System role not supported') }}")
    with pytest.raises(InvalidValue) as refused:
        render(tokenizer, chat(("system", "x")))
    assert refused.value.message == "the model's chat template refuses these messages: System role not supported"
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[0]['nothing']['more'] }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ nothing() }}",
        "{% if %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(1000000) %}x{% endfor %}",
    ],
)
def test_a_template_that_breaks_is_a_refusal_without_a_traceback(fast_blas: Any, template: str) -> None:
    with pytest.raises(InvalidValue, match="the model's chat template refuses these messages: ") as refused:
        render(with_template(template), chat(("user", "hi")))
    assert "\n" not in refused.value.message
    assert "Traceback" not in refused.value.message
    assert len(refused.value.message) < 400


def test_a_template_that_makes_nothing_is_a_refusal(fast_blas: Any) -> None:
    with pytest.raises(InvalidValue, match="makes nothing of these messages"):
        render(with_template("{% if false %}x{% endif %}"), chat(("user", "hi")))


def test_a_model_without_a_template_completes_only(fast_blas: Any) -> None:
    with pytest.raises(InvalidValue, match="no chat template"):
        render(with_template(None), chat(("user", "hi")))


def test_what_a_message_lacks_is_no_key_of_it(fast_blas: Any) -> None:
    tokenizer = with_template("{% for key in messages[0] | sort %}{{ key }} {% endfor %}")
    assert render(tokenizer, chat(("user", "hi"))).text == "content role "
    full = ChatMessage(role="assistant", content="a", name="bo", reasoning_content="hm")
    # The library says "thinking" for it too.
    assert render(tokenizer, chat(full)).text == "content name reasoning_content role thinking "


@pytest.mark.parametrize(("kwargs", "thinking"), [({}, True), ({"enable_thinking": False}, False)])
def test_a_template_may_open_the_reasoning(fast_blas: Any, kwargs: dict[str, Any], thinking: bool) -> None:
    assert render(with_template(THINKING), chat(("user", "hi"), **kwargs)).thinking is thinking


def test_a_marker_in_a_message_opens_nothing(tokenizer: Any) -> None:
    assert not render(tokenizer, chat(("user", "what is <think>"))).thinking


# Tools.

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Graz"}'}}


def called(content: str = "", call: dict[str, Any] = CALL) -> ChatMessage:
    return ChatMessage(role="assistant", content=content, tool_calls=(call,))


def result(content: str) -> ChatMessage:
    return ChatMessage(role="tool", content=content, tool_call_id="c1")


def test_calls_and_results_reach_a_template_that_knows_them(fast_blas: Any) -> None:
    """LLM-02. Arguments arrive as an object, which is what templates expect."""
    made = render(with_template(TOOLS), chat(("user", "weather?"), called(), result("sunny")))
    assert made.text == "user: weather?; assistant: weather(Graz); [c1: sunny]; "


@pytest.mark.parametrize("arguments", ["{broken", "[" * 100_000, '"text"', "NaN"])
def test_arguments_that_are_no_object_reach_it_as_they_are(fast_blas: Any, arguments: str) -> None:
    tokenizer = with_template("{# tool_calls 'tool' #}{{ messages[0].tool_calls[0].function.arguments }}")
    call = {"function": {"name": "f", "arguments": arguments}}
    assert prompt.render(tokenizer, chat(called(call=call)), window=200_000).text == arguments


def test_a_template_without_tools_reads_them_as_text(tokenizer: Any) -> None:
    """LLM-02"""
    messages = [("user", "weather?"), called(), result("sunny"), result("warm"), ("user", "so?")]
    made = render(tokenizer, chat(*messages))  # type: ignore[arg-type]
    assert made.text == (
        "<s>user\nweather?</s>\n"
        '<s>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Graz"}}\n</tool_call></s>\n'
        "<s>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response>\nso?</s>\n"
        "<s>assistant\n"
    )


def test_what_was_said_beside_a_call_stays(tokenizer: Any) -> None:
    made = render(tokenizer, chat(("user", "weather?"), called("let me see")))
    assert "let me see\n<tool_call>\n" in str(made.text)


# Texts and ids.


def test_a_text_begins_as_the_tokenizer_has_it(tokenizer: Any) -> None:
    made = render(tokenizer, Complete("hi"))
    assert made == Prompt((tokenizer.bos_token_id, *b"hi"), "<s>hi", continues=True)
    assert prompt.encode(tokenizer, "<s>hi") == list(made.ids)


def test_a_text_that_begins_so_already_gets_no_second_beginning(tokenizer: Any) -> None:
    assert render(tokenizer, Complete("<s>hi")).ids == (tokenizer.bos_token_id, *b"hi")


def test_without_such_a_token_a_text_is_only_itself(fast_blas: Any) -> None:
    assert render(with_template(None), Complete("hi")) == Prompt(tuple(b"hi"), "hi", continues=True)


def test_a_text_of_nothing_is_refused_where_nothing_begins_it(fast_blas: Any, tokenizer: Any) -> None:
    assert render(tokenizer, Complete("")).ids == (tokenizer.bos_token_id,)
    with pytest.raises(InvalidValue, match="prompt must not be empty") as refused:
        render(with_template(None), Complete(""))
    assert refused.value.param == "prompt"
    with pytest.raises(InvalidValue, match="prompt must not be empty"):
        render(tokenizer, Complete(()))


def test_ids_are_taken_as_they_are_and_have_no_text(tokenizer: Any) -> None:
    assert render(tokenizer, Complete((104, 105))) == Prompt((104, 105), None, continues=True)


@pytest.mark.parametrize("token", [-1, 10_000])
def test_ids_that_the_model_does_not_have_are_refused(tokenizer: Any, token: int) -> None:
    with pytest.raises(InvalidValue, match=rf"the model has no token {token}; its tokens are 0 to 259") as refused:
        render(tokenizer, Complete((104, token)))
    assert refused.value.param == "prompt"


@pytest.mark.parametrize("job", [Complete("say <think>"), Complete((104, 258)), chat(("user", "<think>"))])
def test_a_token_that_only_the_tokenizer_has_is_refused(tokenizer: Any, job: Chat | Complete) -> None:
    """Gemma 3's text models have one such token."""
    from workers.llm import prompt

    made = render(tokenizer, job)
    assert prompt.known(made, 259) is made
    with pytest.raises(InvalidValue, match="the model has no token 258; its tokens are 0 to 257") as refused:
        prompt.known(made, 258)
    assert refused.value.param == ("messages" if isinstance(job, Chat) else "prompt")


def test_an_echo_is_the_prompt_as_the_client_wrote_it(tokenizer: Any) -> None:
    assert render(tokenizer, Complete("hi", echo=True)).echo == "hi"
    assert render(tokenizer, Complete((104, 105), echo=True)).echo == "hi"
    assert render(tokenizer, Complete("hi")).echo == ""


def test_decoding_leaves_out_no_special_token(tokenizer: Any) -> None:
    text = "<s> a , b</s>\n<think>é"
    assert prompt.decode(tokenizer, prompt.encode(tokenizer, text)) == text


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_encoding_and_decoding_give_the_text_back(tokenizer: Any, text: str) -> None:
    assert prompt.decode(tokenizer, prompt.encode(tokenizer, text)) == text


# Room.


def test_an_answer_has_what_it_asks_for_or_what_the_context_leaves() -> None:
    assert prompt.room(90, 100, 5) == 5
    assert prompt.room(90, 100, 50) == 10
    assert prompt.room(90, 100, None) == 10
    assert prompt.room(99, 100, None) == 1


@pytest.mark.parametrize("tokens", [100, 123])
def test_a_prompt_that_fills_the_context_is_refused_with_its_numbers(tokens: int) -> None:
    """LLM-10"""
    with pytest.raises(ContextLengthExceeded) as refused:
        prompt.room(tokens, 100, 1, param="messages")
    assert refused.value.message == f"This model's maximum context length is 100 tokens, but the prompt has {tokens}"
    assert refused.value.param == "messages"


def test_the_field_at_fault_is_the_prompts_own(tokenizer: Any) -> None:
    assert render(tokenizer, Complete("hi")).param == "prompt"
    assert render(tokenizer, chat(("user", "hi"))).param == "messages"


def test_a_text_far_over_the_context_is_refused_without_reading_all_of_it(tokenizer: Any) -> None:
    """LLM-10"""
    begun = time.process_time()
    with pytest.raises(
        ContextLengthExceeded, match=r"maximum context length is 1000 tokens, .* has at least "
    ) as refused:
        render(tokenizer, Complete("x" * 30_000_000))
    assert time.process_time() - begun < 2
    assert refused.value.param == "prompt"


def test_a_long_text_of_few_tokens_fits(fast_blas: Any) -> None:
    tokenizer = toy_tokenizers.byte_level(added=("=" * 100,))
    made = render(tokenizer, Complete("=" * 100 * 900))
    assert len(made.ids) == 900


def test_more_messages_than_tokens_are_refused_before_the_template_runs(fast_blas: Any) -> None:
    tokenizer = with_template("{{ raise_exception('ran') }}")
    with pytest.raises(ContextLengthExceeded, match="has more than 1000"):
        render(tokenizer, chat(*[("user", "x")] * (WINDOW + 1)))
