"""Vectors of texts with adapters: alone, in parts, beside other jobs, by default, refused and let go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import Kind
from protocol.events import Embedded, Failed
from protocol.jobs import Embed, MountAdapter, UnmountAdapter
from protocol.settings import AdapterSource
from tests.workers.llm.adapters.toy_adapters import layers_of, save_mlx_lm
from tests.workers.llm.test_embeddings import last_layer, unit, vectors
from tests.workers.llm.toy import VOCABULARY, WINDOW, Driver, ToyLanguage, complete
from workers.llm.texts import Embedder, Tokens

TEXTS = ("abc", "Zebra", "a" * 40, "no", "xyzzy" * 5)


@pytest.fixture(scope="module")
def folders(model: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    sizes = layers_of(model, (0, 1))
    return {name: save_mlx_lm(root / name, sizes, seed=seed) for seed, name in enumerate(("pirate", "poet"), 7)}


def driver(model: Any, folders: dict[str, Path], *, default: str = "") -> Driver:
    from workers.llm.embeddings import Embeddings
    from workers.llm.vectors import Decoder, served

    made = Driver(model, ToyLanguage(frozenset({-1})), default_adapter=default)
    embedder = Embedder(Decoder(model, 32, "mean"), Tokens(ToyLanguage().encode, VOCABULARY, WINDOW))
    engine: Any = made.engine
    engine._embeddings = Embeddings(served(embedder, made.mounts.serving), engine._shares, "toy", made.mounts)
    for name, folder in folders.items():
        made.answer(MountAdapter(AdapterSource(name, str(folder), name)))
    return made


@pytest.fixture
def adapted(model: Any, folders: dict[str, Path]) -> Any:
    made = driver(model, folders)
    yield made
    for name in list(made.mounts._mounted):
        made.answer(UnmountAdapter(name))


def test_vectors_are_the_last_layer_s_with_the_adapter_that_the_job_names(model: Any, adapted: Driver) -> None:
    found = {name: vectors(adapted.answer(Embed(TEXTS, adapter=name))) for name in ("", "none", "pirate", "poet")}
    for name, key in (("none", ""), ("pirate", "pirate#1"), ("poet", "poet#2")):
        expected = []
        for text in TEXTS:
            adapted.mounts.serving.turn((key,))
            expected.append(unit(last_layer(model, text).mean(0)))
        np.testing.assert_allclose(found[name], expected, atol=1e-5)
    assert np.array_equal(found[""], found["none"])
    assert np.abs(found["pirate"] - found["poet"]).max() > 0.01 < np.abs(found["pirate"] - found["none"]).max()


def test_a_vector_is_the_same_in_parts_beside_jobs_with_other_adapters(adapted: Driver) -> None:
    names = ("pirate", "none", "poet")
    alone = {name: vectors(adapted.answer(Embed(TEXTS, adapter=name))) for name in names}
    said = {name: adapted.answer(complete("abc", tokens=30, adapter=name)).text() for name in names}
    for pace in (adapted.engine._embeddings._idle_pace, adapted.engine._embeddings._busy_pace):
        pace._size = pace._most = 7
    read = {name: adapted.ask(Embed(TEXTS, adapter=name, client=name)) for name in names}
    talking = {name: adapted.ask(complete("abc", tokens=30, adapter=name)) for name in names}
    adapted.run()
    for name in names:
        np.testing.assert_allclose(vectors(read[name]), alone[name], atol=1e-5)
        assert talking[name].text() == said[name]


def test_the_end_of_a_job_says_which_adapter_it_had(model: Any, folders: dict[str, Path]) -> None:
    made = driver(model, folders, default="poet")
    last = [made.answer(Embed(("abc",), adapter=name)).last for name in ("", "none", "pirate")]
    assert [each.adapter for each in last if isinstance(each, Embedded)] == ["poet", None, "pirate"]
    for name in folders:
        made.answer(UnmountAdapter(name))


def test_an_adapter_stays_for_a_job_that_runs_and_leaves_with_it(adapted: Driver) -> None:
    base, whole = (vectors(adapted.answer(Embed(TEXTS, adapter=name))) for name in ("none", "pirate"))
    pace = adapted.engine._embeddings._idle_pace
    pace._size = pace._most = 7
    running, cancelled = adapted.ask(Embed(TEXTS, adapter="pirate")), adapted.ask(Embed(TEXTS, adapter="pirate"))
    adapted.steps(2)
    adapted.answer(UnmountAdapter("pirate"))
    assert not running.over
    adapted.engine.cancel(cancelled.handle)
    adapted.run()
    np.testing.assert_allclose(vectors(running), whole, atol=1e-5)
    refused = adapted.ask(Embed(("abc",), adapter="pirate")).last
    assert isinstance(refused, Failed) and (refused.kind, refused.param) == (Kind.UNKNOWN_ADAPTER, "adapter")
    assert set(adapted.mounts._held) == {"poet#2"}
    pace._most = 4096
    pace._size = 256
    assert np.array_equal(vectors(adapted.answer(Embed(TEXTS))), base)


def test_a_model_for_embeddings_alone_has_none() -> None:
    from protocol.errors import UnknownAdapter
    from workers.llm.embeddings import NoAdapters

    assert NoAdapters("mini").enter("none") == NoAdapters("mini").enter("") == ("", None)
    with pytest.raises(
        UnknownAdapter, match="there is no adapter 'pirate' here: mini is a model for embeddings"
    ) as raised:
        NoAdapters("mini").enter("pirate")
    assert raised.value.param == "adapter"
