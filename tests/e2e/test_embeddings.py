"""Embeddings with OpenAI's client: of the model that is there for them and of the language model, beside a chat."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.e2e.chats import NEVER_ENDS, body
from tests.e2e.server import Server, until

pytestmark = [pytest.mark.model, pytest.mark.port]

MINI, SMOL = "all-minilm-l6-v2", "smollm2-135m-instruct"
FOOD = ["A man is eating food.", "A man is eating a piece of bread.", "Two men pushed carts through the woods."]
TOKENS = [101, 1037, 2158, 2003, 5983, 2833, 1012, 102]
"""The first of them, as the encoder's own tokenizer has it."""


@pytest.fixture(scope="module")
def client(talker: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{talker.url}/v1", api_key="x", max_retries=0, timeout=300) as made:
        yield made


def vectors(answer: Any) -> Any:
    assert [each.index for each in answer.data] == list(range(len(answer.data)))
    return np.array([each.embedding for each in answer.data])


def test_the_official_client_gets_vectors_that_tell_texts_apart(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="text-embedding-3-small", input=FOOD)
    found = vectors(answer)
    assert (answer.object, answer.model, found.shape) == ("list", MINI, (3, 384))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    near, far, _ = found[0] @ found[1], found[0] @ found[2], found[1] @ found[2]
    assert near > 0.7 > 0.3 > far
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (29, 29)


def test_numbers_base64_tokens_and_company_make_no_difference(client: openai.OpenAI) -> None:
    together = vectors(client.embeddings.create(model=MINI, input=FOOD))
    numbers = vectors(client.embeddings.create(model=MINI, input=FOOD[0], encoding_format="float"))
    raw: Any = client.embeddings.create(model=MINI, input=FOOD[0], encoding_format="base64").data[0].embedding
    tokens = vectors(client.embeddings.create(model=MINI, input=TOKENS))
    several = vectors(client.embeddings.create(model=MINI, input=[TOKENS, [101, 102]]))
    for same in (numbers[0], np.frombuffer(base64.b64decode(raw), "<f4"), tokens[0], several[0]):
        np.testing.assert_allclose(same, together[0], atol=1e-5)


def test_fewer_dimensions_are_the_first_ones(client: openai.OpenAI) -> None:
    whole = vectors(client.embeddings.create(model=MINI, input=FOOD[0]))[0][:64]
    cut = vectors(client.embeddings.create(model=MINI, input=FOOD[0], dimensions=64))[0]
    np.testing.assert_allclose(cut, whole / np.linalg.norm(whole), atol=1e-6)


@pytest.mark.parametrize("model", [MINI, SMOL])
def test_what_does_not_fit_is_refused_by_name(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError, match=r"input\[1\] has") as long:
        client.embeddings.create(model=model, input=["a", "word " * 9000])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input[1]")
    with pytest.raises(openai.BadRequestError) as wide:
        client.embeddings.create(model=model, input="a", dimensions=5000)
    assert wide.value.param == "dimensions"


def test_a_model_for_embeddings_has_no_adapters(client: openai.OpenAI) -> None:
    with pytest.raises(
        openai.NotFoundError, match="all-minilm-l6-v2 is a model for embeddings, which has none"
    ) as raised:
        client.embeddings.create(model=MINI, input="a", extra_body={"adapter": "pirate"})
    assert (raised.value.code, raised.value.param) == ("unknown_adapter", "adapter")
    assert client.embeddings.create(model=MINI, input="a", extra_body={"adapter": "none"}).model == MINI


def test_the_language_model_embeds_too(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=SMOL, input=[*FOOD, "word " * 700])
    found = vectors(answer)
    assert (answer.model, found.shape) == (SMOL, (4, 576))
    alone = [vectors(client.embeddings.create(model=SMOL, input=text))[0] for text in (FOOD[1], "word " * 700)]
    np.testing.assert_allclose(found[[1, 3]], alone, atol=1e-5)
    assert found[0] @ found[1] > found[0] @ found[2]


def test_a_chat_goes_on_beside_many_texts(talker: Server, client: openai.OpenAI) -> None:
    """STR-01 too: whoever leaves in the middle of a batch frees the worker."""
    texts = [f"The {number}th of many sentences about nothing in particular, to be read." for number in range(2048)]

    def leave() -> None:
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{talker.url}/v1/embeddings", json={"model": SMOL, "input": texts}, timeout=8)

    batch = threading.Thread(target=leave)
    batch.start()
    until(lambda: talker.stats("llm")["running"] == 1, "the batch is at work")
    stream: Any = client.chat.completions.create(model=SMOL, stream=True, **body(max_tokens=12, logit_bias=NEVER_ENDS))
    times = [time.monotonic() for _ in stream]
    # A token and a piece of the batch take turns: 0.15 s on an idle machine.
    assert max(np.diff(times)) < 5
    assert talker.stats("llm")["running"] == 1, "the batch was over before the chat"
    batch.join()
    until(lambda: talker.stats("llm")["running"] == 0, "the worker is free again", seconds=20)


def test_the_models_say_what_embeds(client: openai.OpenAI) -> None:
    for model in (MINI, SMOL):
        listed: Any = client.models.retrieve(model)
        assert listed.capabilities["embeddings"] is True
    assert client.models.retrieve(MINI).context_window == 256  # type: ignore[attr-defined]
