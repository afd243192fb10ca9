"""Vectors of texts from a toy network: alone and together, long and short, beside chats, cut, refused and cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from protocol.errors import Kind
from protocol.events import Embedded, Failed, Vectors
from protocol.jobs import Embed
from tests.workers.llm.toy import VOCABULARY, WINDOW, Asked, Driver, ToyLanguage, complete, network
from workers.llm.texts import Embedder, Tokens

TEXTS = ("abc", "Zebra", "a" * 40, "no", "xyzzy" * 5)
NEVER = frozenset({-1})


@pytest.fixture(scope="module")
def model(fast_blas: Any) -> Any:
    return network()


def driver(model: Any, pooling: Any = "mean") -> Driver:
    from workers.llm.vectors import Decoder

    tokens = Tokens(ToyLanguage().encode, VOCABULARY, WINDOW)
    return Driver(model, ToyLanguage(NEVER), embedder=Embedder(Decoder(model, 32, pooling), tokens))


def vectors(asked: Asked) -> Any:
    """(inputs, width), in the order of the inputs."""
    assert isinstance(asked.last, Embedded), asked.last
    told = [each for each in asked.events if isinstance(each, Vectors)]
    places = [place for each in told for place in each.places]
    found = np.frombuffer(b"".join(each.data for each in told), "<f4").reshape(len(places), -1)
    assert sorted(places) == list(range(len(places)))
    return found[np.argsort(places)]


def last_layer(model: Any, text: str) -> Any:
    import mlx.core as mx

    return np.array(model.model(mx.array([ToyLanguage().encode(text)]))[0])


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize(
    ("pooling", "of"), [("mean", lambda h: h.mean(0)), ("last", lambda h: h[-1]), ("cls", lambda h: h[0])]
)
def test_a_vector_is_the_last_layer_pooled_and_of_length_one(model: Any, pooling: str, of: Any) -> None:
    found = vectors(driver(model, pooling).answer(Embed(TEXTS)))
    expected = [unit(of(last_layer(model, text))) for text in TEXTS]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_a_text_has_the_same_vector_alone_among_others_and_in_parts(model: Any, pooling: str) -> None:
    together = vectors(driver(model, pooling).answer(Embed(TEXTS)))
    alone = [vectors(driver(model, pooling).answer(Embed((text,))))[0] for text in TEXTS]
    pieces = driver(model, pooling)
    for pace in (pieces.engine._embeddings._idle_pace, pieces.engine._embeddings._busy_pace):
        pace._size, pace._most = 7, 7
    in_parts = vectors(pieces.answer(Embed(TEXTS)))
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(in_parts, alone, atol=1e-5)


def test_tokens_are_read_as_they_are(model: Any) -> None:
    ids = tuple(ToyLanguage().encode("Zebra"))
    both = vectors(driver(model).answer(Embed((ids, "Zebra"))))
    np.testing.assert_allclose(both[0], both[1], atol=1e-6)


def test_fewer_dimensions_are_the_first_ones_of_length_one(model: Any) -> None:
    whole = vectors(driver(model).answer(Embed(("abc",))))[0]
    cut = vectors(driver(model).answer(Embed(("abc",), dimensions=8)))[0]
    assert cut.shape == (8,)
    np.testing.assert_allclose(cut, unit(whole[:8]), atol=1e-6)


def test_all_tokens_are_counted(model: Any) -> None:
    last = driver(model).answer(Embed(("abc", (1, 2), "no"))).last
    assert isinstance(last, Embedded) and last.tokens == 7


@pytest.mark.parametrize(
    ("job", "kind", "param", "message"),
    [
        (Embed(("a", "a" * (WINDOW + 1))), Kind.CONTEXT_LENGTH_EXCEEDED, "input[1]", "401"),
        (Embed(("a" * 100_000,)), Kind.CONTEXT_LENGTH_EXCEEDED, "input[0]", "at least"),
        (Embed(((1, VOCABULARY),)), Kind.INVALID_VALUE, "input[0]", "no token 80; its tokens are 0 to 79"),
        (
            Embed(((1, VOCABULARY - 1, VOCABULARY),)),
            Kind.INVALID_VALUE,
            "input[0]",
            "no token 80; its tokens are 0 to 79",
        ),
        (Embed(((1, -1),)), Kind.INVALID_VALUE, "input[0]", "no token -1"),
        (Embed(("a",), dimensions=33), Kind.INVALID_VALUE, "dimensions", "from 1 to 32"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(
    model: Any, job: Embed, kind: Kind, param: str, message: str
) -> None:
    made = driver(model)
    last = made.answer(job).last
    assert isinstance(last, Failed)
    assert (last.kind, last.param) == (kind, param)
    assert message in last.message
    assert not made.engine.busy


def test_a_model_without_vectors_says_so(model: Any) -> None:
    last = Driver(model).answer(Embed(("a",))).last
    assert isinstance(last, Failed) and last.kind == Kind.UNSUPPORTED_TASK


def test_a_vector_that_is_not_finite_fails_its_job_alone(model: Any) -> None:
    made = driver(model)
    network = made.engine._embeddings._embedder.network  # type: ignore[union-attr]
    together = network.together

    def broken(inputs: Sequence[Any]) -> Any:
        return together(inputs) * np.float32(np.nan if len(inputs[0]) == 3 else 1)

    network.together = broken  # type: ignore[method-assign]
    bad, good = made.ask(Embed(("abc",))), made.ask(Embed(("Zebra",)))
    made.run()
    assert isinstance(bad.last, Failed) and bad.last.kind == Kind.INTERNAL_ERROR
    assert isinstance(good.last, Embedded)


def test_a_cancelled_job_is_not_answered_and_others_are(model: Any) -> None:
    made = driver(model)
    gone, stays = made.ask(Embed(TEXTS)), made.ask(Embed(TEXTS))
    assert gone.handle is not None
    made.engine.cancel(gone.handle)
    made.run()
    assert gone.events == []
    assert vectors(stays).shape == (5, 32)


def test_a_chat_says_the_same_beside_many_texts_and_is_not_held_up(model: Any) -> None:
    alone = driver(model).answer(complete("abc", tokens=30)).text()
    made = driver(model)
    embeddings = made.engine._embeddings
    embeddings._busy_pace._size = embeddings._busy_pace._most = 20
    many = made.ask(Embed(tuple("lorem_ipsum" for _ in range(400)), client="a batch"))
    made.steps(2)
    talking = made.ask(complete("abc", tokens=30, client="a person"))
    made.run(lambda: talking.over)
    assert talking.text() == alone
    assert not many.over
    made.run()
    assert vectors(many).shape == (400, 32)


def test_a_short_job_does_not_wait_for_a_long_one_of_somebody_else(model: Any) -> None:
    made = driver(model)
    pace = made.engine._embeddings._idle_pace
    pace._size = pace._most = 50
    many, one = made.ask(Embed(("abcde",) * 500, client="a")), made.ask(Embed(("abc",), client="b"))
    made.run(lambda: one.over)
    assert not many.over
    assert isinstance(one.last, Embedded)


def test_one_long_text_at_a_time_is_in_the_middle(model: Any) -> None:
    made = driver(model)
    pace = made.engine._embeddings._idle_pace
    pace._size = pace._most = 50
    jobs = [made.ask(Embed(("a" * 300,), client=name)) for name in "abc"]
    most = 0
    while made.engine.busy:
        made.steps(1)
        most = max(most, sum(each.handle.reading is not None for each in jobs))  # type: ignore[union-attr]
    assert most == 1
    assert all(isinstance(each.last, Embedded) for each in jobs)
