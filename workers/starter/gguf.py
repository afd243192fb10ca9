"""Reads a Llama model from llama.cpp's GGUF and writes it as mlx-lm has it: weights, configuration, tokenizer.

Knows names, layouts and metadata; knows neither wheels nor folders. What is quantized stays quantized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from workers import safetensors
from workers.llm.files import CONFIG, TOKENIZER, TOKENIZER_CONFIG, WHOLE
from workers.starter.ctranslate2 import FormatError

Array = np.ndarray[Any, np.dtype[Any]]

_PRE_TOKENIZER = "smollm"
"""The only one whose rules are written down here: digits one by one, then GPT-2's pattern over bytes."""
_CONTROL = (3, 4)
"""Token types of the control and the user-defined tokens (llama.cpp's llama_token_type)."""
_GROUP = 32
"""Weights that share a scale in all of GGUF's plain formats (Q4_0, Q4_1, Q8_0)."""

_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class Model(msgspec.Struct, frozen=True):
    """What a GGUF holds."""

    weights: dict[str, Array]
    metadata: dict[str, Any]
    """Numbers, strings, and lists of them."""


def read(path: Path) -> Model:
    """All arrays and metadata. Raises FormatError for a cut or foreign file."""
    import mlx.core as mx

    try:
        loaded: Any = mx.load(str(path), format="gguf", return_metadata=True)
        arrays, found = loaded
        weights = {name: np.array(array) for name, array in arrays.items()}
    except (RuntimeError, ValueError) as error:
        raise FormatError("it cannot be read as a GGUF") from error
    metadata = {key: value.tolist() if isinstance(value, mx.array) else value for key, value in found.items()}
    return Model(weights, metadata)


def files(model: Model) -> dict[str, Iterator[bytes | memoryview] | list[bytes]]:
    """The folder's files by name, the weights last. Raises FormatError for what is missing or unknown."""
    weights = _renamed(model)
    return {
        CONFIG: [_json(_config(model, weights))],
        TOKENIZER: [_json(_tokenizer(model))],
        TOKENIZER_CONFIG: [_json(_tokenizer_config(model))],
        WHOLE: safetensors.pieces(weights, {"format": "mlx"}),
    }


def _renamed(model: Model) -> dict[str, Array]:
    """The arrays under mlx-lm's names. float32 becomes float16, as the scales are, so that a GPU computes in one type.

    llama.cpp keeps each pair of rotated rows of a head together; mlx-lm has the first halves of all pairs before the
    second ones. Rows move whole, so that quantized ones need not be read.
    """
    heads = {
        "attn_q": _get(model, "llama.attention.head_count"),
        "attn_k": _get(model, "llama.attention.head_count_kv"),
    }
    renamed = {}
    for name, array in model.weights.items():
        if name.startswith("rope_freqs"):
            continue
        *path, module, part = name.split(".")
        if path:
            target = f"model.layers.{path[1]}.{_NAMES.get(module, '')}" if module in _NAMES else None
        else:
            target = _OUTER.get(module)
        if target is None:
            raise FormatError(f"{name[:40]} is unknown")
        if module in heads:
            count = heads[module]
            array = array.reshape(count, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        renamed[f"{target}.{part}"] = array.astype(np.float16) if array.dtype == np.float32 else array
    return renamed


def _config(model: Model, weights: Mapping[str, Array]) -> dict[str, Any]:
    if _get(model, "general.architecture") != "llama":
        raise FormatError("it is no Llama model")
    width, heads = _get(model, "llama.embedding_length"), _get(model, "llama.attention.head_count")
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "num_hidden_layers": _get(model, "llama.block_count"),
        "intermediate_size": _get(model, "llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": _get(model, "llama.attention.head_count_kv"),
        "head_dim": width // heads,
        # GGUF stores it as a float32.
        "rms_norm_eps": float(f"{_get(model, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": _get(model, "llama.rope.freq_base"),
        "max_position_embeddings": _get(model, "llama.context_length"),
        "vocab_size": len(_get(model, "tokenizer.ggml.tokens")),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "bos_token_id": _get(model, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _get(model, "tokenizer.ggml.eos_token_id"),
        **_quantization(weights),
    }


def _quantization(weights: Mapping[str, Array]) -> dict[str, Any]:
    """The bits of each module: a file's name says Q4_1 even where its token table has 8 bits."""
    bits = {}
    for name, scales in weights.items():
        if name.endswith(".scales"):
            module = name.removesuffix(".scales")
            bits[module] = weights[f"{module}.weight"].shape[-1] * 32 // (scales.shape[-1] * _GROUP)
    if not bits:
        return {}
    usual = max(set(bits.values()), key=list(bits.values()).count)
    exceptions = {module: {"group_size": _GROUP, "bits": each} for module, each in bits.items() if each != usual}
    quantization = {"group_size": _GROUP, "bits": usual, "mode": "affine", **exceptions}
    return {"quantization": quantization, "quantization_config": quantization}


def _tokenizer(model: Model) -> dict[str, Any]:
    """tokenizer.json: byte-level BPE without a normalizer or a beginning-of-sequence token."""
    if (_get(model, "tokenizer.ggml.model"), _get(model, "tokenizer.ggml.pre")) != ("gpt2", _PRE_TOKENIZER):
        raise FormatError("its tokenizer is unknown")
    tokens, types = _get(model, "tokenizer.ggml.tokens"), _get(model, "tokenizer.ggml.token_type")
    bytes_as_letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(number, token) for number, token in _control(tokens, types)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_as_letters],
        },
        "post_processor": None,
        "decoder": {**bytes_as_letters, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": _get(model, "tokenizer.ggml.merges"),
        },
    }


def _control(tokens: list[str], types: list[int]) -> Iterator[tuple[int, str]]:
    return ((number, token) for number, token in enumerate(tokens) if types[number] in _CONTROL)


def _added(number: int, token: str) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": token, **plain, "special": True}


def _tokenizer_config(model: Model) -> dict[str, Any]:
    tokens, types = _get(model, "tokenizer.ggml.tokens"), _get(model, "tokenizer.ggml.token_type")
    named = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id", "unk": "unknown_token_id"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": _get(model, "llama.context_length"),
        **{f"{name}_token": tokens[_get(model, f"tokenizer.ggml.{key}")] for name, key in named.items()},
        "additional_special_tokens": [token for _, token in _control(tokens, types)],
        "chat_template": _get(model, "tokenizer.chat_template"),
    }


def _get(model: Model, key: str) -> Any:
    if key not in model.metadata:
        raise FormatError(f"{key} is missing")
    return model.metadata[key]


def _json(value: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value)) + b"\n"
