"""Every form a language model comes in is read; every broken one is explained. Random small weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import ModelNotConfigured
from tests.conftest import data_dir
from workers import blas

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": 260,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}

Arrays = dict[str, Any]


def tokenizer() -> dict[str, Any]:
    """Bytes, each a token."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = ["<pad>", "<end>", *sorted(ByteLevel.alphabet())]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "vocab": {letter: number for number, letter in enumerate(letters)},
            "merges": [],
        },
    }


@pytest.fixture(scope="module")
def arrays(fast_blas: blas.Blas) -> Arrays:
    """Weights of the small model, float16."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama

    mx.random.seed(7)
    network = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    made = {
        name: (mx.random.normal(array.shape) * 0.1).astype(mx.float16)
        for name, array in tree_flatten(network.parameters())
    }
    mx.eval(made)
    return made


def write(folder: Path, arrays: Arrays, config: Any = CONFIG, name: str = "model.safetensors") -> Path:
    import mlx.core as mx

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"})
    )
    mx.save_safetensors(str(folder / name), arrays, {"format": "mlx"})
    return folder


def load(folder: Path | str, **options: Any) -> Any:
    from workers.llm.load import load

    return load(str(folder), data_dir=data_dir(), offline=True, report=lambda _: None, **options)


def logits(loaded: Any) -> np.ndarray[Any, Any]:
    import mlx.core as mx

    return np.array(loaded.network(mx.array([[5, 6, 7, 8]])).astype(mx.float32))


def dtypes(loaded: Any) -> set[str]:
    from mlx.utils import tree_flatten

    return {str(array.dtype) for _, array in tree_flatten(loaded.network.parameters())}


def test_half_precision_is_float32_on_the_cpu(arrays: Arrays, tmp_path: Path) -> None:
    loaded = load(write(tmp_path / "m", arrays), tuned=False)
    assert dtypes(loaded) == {"mlx.core.float32"}
    assert (loaded.model.id, loaded.model.kind, loaded.model.dtype) == ("m", "llm", "float32")
    assert (loaded.model.context_window, loaded.vocabulary) == (128, 260)
    assert loaded.model.parameters == sum(array.size for array in arrays.values())
    assert loaded.tokenizer.eos_token_ids == {1}


def test_the_tuned_network_says_the_same(arrays: Arrays, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", arrays)
    stock, tuned = load(folder, tuned=False), load(folder)
    assert np.abs(logits(stock) - logits(tuned)).max() < 1e-4
    assert type(tuned.network.layers[0]).__name__ == "Block"


def test_dynamic_scaling_changes_nothing_within_the_window(arrays: Arrays, tmp_path: Path) -> None:
    """mlx-lm's own module for it takes no rows at different positions."""
    import mlx.core as mx
    from mlx_lm.models.cache import BatchKVCache

    scaled = {**CONFIG, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    plain = logits(load(write(tmp_path / "plain", arrays), tuned=False))
    folder = write(tmp_path / "scaled", arrays, scaled)
    for tuned in (False, True):
        loaded = load(folder, tuned=tuned)
        assert np.abs(logits(loaded) - plain).max() < 1e-4
        rows = [BatchKVCache([0, 2]) for _ in loaded.network.layers]
        assert np.isfinite(np.array(loaded.network(mx.array([[5, 6, 7], [0, 0, 8]]), cache=rows))[:, -1]).all()
    assert type(loaded.network.layers[0]).__name__ == "Block"


def test_a_tokenizer_may_have_more_tokens_than_the_network(arrays: Arrays, tmp_path: Path) -> None:
    from protocol.errors import InvalidValue

    few = {name: array[:200] if "embed_tokens" in name else array for name, array in arrays.items()}
    loaded = load(write(tmp_path / "m", few, {**CONFIG, "vocab_size": 200}))
    assert (loaded.vocabulary, loaded.embedder.tokens.vocabulary) == (200, 200)
    with pytest.raises(InvalidValue, match="its tokens are 0 to 199"):
        loaded.embedder.tokens.of(" ", "input")


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_makes_logits_of_the_last_position_alone(arrays: Arrays, tmp_path: Path, tied: bool) -> None:
    import mlx.core as mx

    untied = {} if tied else {"lm_head.weight": arrays["model.embed_tokens.weight"]}
    loaded = load(write(tmp_path / "m", {**arrays, **untied}, {**CONFIG, "tie_word_embeddings": tied}))
    ids = mx.array([[5, 6, 7, 8]])
    last = loaded.head(loaded.network.model(ids)[:, -1:])
    assert last.shape == (1, 1, 260)
    assert np.abs(np.array(last) - logits(loaded)[:, -1:]).max() < 1e-5


def test_shards(arrays: Arrays, tmp_path: Path) -> None:
    import mlx.core as mx

    names = list(arrays)
    expected = logits(load(write(tmp_path / "whole", arrays)))
    folder = write(tmp_path / "m", {name: arrays[name] for name in names[:9]}, name="model-00001-of-00002.safetensors")
    second = folder / "model-00002-of-00002.safetensors"
    mx.save_safetensors(str(second), {name: arrays[name] for name in names[9:]})
    shards = {name: f"model-0000{1 + (index >= 9)}-of-00002.safetensors" for index, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert np.array_equal(logits(load(folder)), expected)
    second.unlink()
    assert refusal(folder) == "m is incomplete: model-00002-of-00002.safetensors is missing"


@pytest.fixture(scope="module")
def quantized(arrays: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As mlx-lm's converter does: the table in 8 bits, the rest in 4, in groups of 32."""
    import mlx.core as mx

    made: Arrays = {}
    for name, array in arrays.items():
        if "norm" in name:
            made[name] = array
            continue
        bits = 8 if "embed" in name else 4
        module = name.removesuffix(".weight")
        packed = mx.quantize(array, group_size=32, bits=bits)
        made |= {f"{module}.{part}": each for part, each in zip(("weight", "scales", "biases"), packed, strict=True)}
    quantization = {"group_size": 32, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8}}
    return write(tmp_path_factory.mktemp("quantized") / "q", made, {**CONFIG, "quantization": quantization})


@pytest.mark.parametrize("tuned", [True, False])
def test_a_quantized_model_stays_so_as_compiled_code_and_is_float32_else(
    quantized: Path, arrays: Arrays, tmp_path: Path, tuned: bool
) -> None:
    loaded = load(quantized, tuned=tuned)
    assert (loaded.model.dtype, dtypes(loaded)) == (("4-bit", set()) if tuned else ("float32", {"mlx.core.float32"}))
    assert loaded.model.parameters == sum(array.size for array in arrays.values())
    plain = logits(load(write(tmp_path / "m", arrays)))
    assert np.corrcoef(logits(loaded).ravel(), plain.ravel())[0, 1] > 0.99


def test_a_dequantized_model_says_what_mlx_lm_says_quantized(quantized: Path) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    network, _ = load_model(quantized)
    expected = np.array(network(mx.array([[5, 6, 7, 8]])).astype(mx.float32))
    assert np.abs(logits(load(quantized)) - expected).max() < 0.01  # mlx-lm computes it in float16


def refusal(folder: Path | str) -> str:
    with pytest.raises(ModelNotConfigured) as refused:
        load(folder)
    assert "/" not in refused.value.message.replace("owner/name", "")
    return refused.value.message


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("model.norm.weight"), "mlx-lm cannot load m: Missing 1 parameters:"),
        (
            lambda arrays: {**arrays, "extra.weight": arrays["model.norm.weight"]},
            "mlx-lm cannot load m: Received 1 parameters not in model:",
        ),
        (
            lambda arrays: {**arrays, "model.norm.weight": arrays["model.norm.weight"][:63]},
            "mlx-lm cannot load m: Expected shape (64,) but received shape (63,) for parameter model.norm.weight",
        ),
    ],
)
def test_wrong_weights_are_named(
    arrays: Arrays, tmp_path: Path, change: Callable[[Arrays], Arrays], message: str
) -> None:
    assert refusal(write(tmp_path / "m", change(arrays))).startswith(message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "m is no language model: its config.json names no model_type"),
        ([], "m: config.json holds no object"),
        ({"model_type": "whisper"}, "m is a speech model, not a language model"),
        ({"model_type": "bert"}, "m is no language model that mlx-lm knows but 'bert'"),
        ({"model_type": "../llama"}, "m is no language model that mlx-lm knows but '..\\u002fllama'"),
        ({**CONFIG, "model_file": "mine.py"}, "m needs code that comes with it, and such code is never run"),
        (
            {"model_type": "llama"},
            "mlx-lm cannot load m: ModelArgs.__init__() missing 6 required positional arguments: 'hidden_size'",
        ),
    ],
)
def test_a_wrong_configuration_is_named(arrays: Arrays, tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(ModelNotConfigured) as refused:
        load(write(tmp_path / "m", arrays, config))
    assert refused.value.message.replace("/", "\\u002f").startswith(message)


def test_a_configuration_of_no_json_is_named(arrays: Arrays, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", arrays)
    (folder / "config.json").write_bytes(b"\0junk")
    assert refusal(folder) == "m: config.json is no JSON"


def test_cut_weights_are_noticed(arrays: Arrays, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", arrays)
    data = (folder / "model.safetensors").read_bytes()
    for length in (0, 4, 100, len(data) // 2, len(data) - 1):
        (folder / "model.safetensors").write_bytes(data[:length])
        assert refusal(folder) == "m: model.safetensors is incomplete; fetch it again"


def test_pickled_weights_are_not_read(arrays: Arrays, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", arrays)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert refusal(folder) == "m has no weights: neither model.safetensors nor parts of it are there"


def test_a_missing_or_broken_tokenizer_is_explained(arrays: Arrays, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", arrays)
    (folder / "tokenizer.json").write_text("{}")
    assert refusal(folder).startswith("the tokenizer of m cannot be loaded: ")
    (folder / "tokenizer.json").unlink()
    assert refusal(folder) == (
        "m has no tokenizer: none of tokenizer.json, tokenizer.model, vocab.json, tiktoken.model is there"
    )


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"hidden_size": 100, "num_attention_heads": 3, "num_key_value_heads": 1}, "hidden size (100)"),
        ({"initializer_range": "wide"}, "initializer_range"),
    ],
)
def test_what_transformers_alone_refuses_is_explained(
    arrays: Arrays, tmp_path: Path, wrong: dict[str, Any], reason: str
) -> None:
    """mlx-lm loads such networks; the tokenizer's class is looked for in the configuration."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama

    config = CONFIG | wrong
    network = llama.Model(llama.ModelArgs.from_dict(config))
    zeros = {name: mx.zeros(array.shape) for name, array in tree_flatten(network.parameters())}
    said = refusal(write(tmp_path / "m", zeros, config))
    assert said.startswith("the tokenizer of m cannot be loaded: ") and reason in said


def test_an_empty_folder_no_folder_and_a_speech_starter(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert refusal(tmp_path / "m") == "m is no language model: it has no config.json"
    for name, shown in ((tmp_path / "nowhere", "nowhere"), ("whisper-base", "whisper-base")):
        assert refusal(name) == (
            f"there is no language model {shown!r}: name a folder, a Hugging Face id (owner/name) "
            "or a starter (smollm2-135m-instruct)"
        )


def test_an_id_that_is_not_here_is_not_asked_for_offline() -> None:
    with pytest.raises(ModelNotConfigured) as refused:
        load("nobody/nothing")
    assert refused.value.message == (
        "nobody/nothing is not on this machine and the hub is off limits (offline): "
        "run `starling get nobody/nothing` online"
    )


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, (None, None, None)),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, (0.6, 0.95, 20)),
        ({"temperature": -1, "top_p": 1.5, "top_k": True}, (None, None, None)),
        ({"temperature": "hot", "do_sample": True}, (None, None, None)),
        ({"temperature": 0.6, "do_sample": False}, (None, None, None)),
    ],
)
def test_how_it_is_to_be_sampled(
    arrays: Arrays, tmp_path: Path, generation: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    from workers.llm import files

    folder = write(tmp_path / "m", arrays)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    defaults = files.describe(folder, "m").defaults
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == expected


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({}, 128),
        ({"max_position_embeddings": None}, 4096),
        ({"max_position_embeddings": None, "n_positions": 77}, 77),
        ({"max_position_embeddings": None, "text_config": {"max_position_embeddings": 99}}, 99),
    ],
)
def test_the_context_window(arrays: Arrays, tmp_path: Path, change: dict[str, Any], window: int) -> None:
    from workers.llm import files

    assert files.describe(write(tmp_path / "m", arrays, {**CONFIG, **change}), "m").context_window == window


def test_of_a_repository_one_layout_and_no_code_is_chosen() -> None:
    from workers.llm.files import choose

    small = ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    unwanted = ["modeling_mine.py", "pytorch_model.bin", "model.fp32.safetensors", "README.md", "onnx/model.onnx"]
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert choose([*small, *unwanted, "model.safetensors"]) == tuple(sorted([*small, "model.safetensors"]))
    assert choose([*small, *unwanted, *shards, "model.safetensors.index.json"]) == tuple(
        sorted([*small, *shards, "model.safetensors.index.json"])
    )
    assert choose([*small, *unwanted]) == ()
