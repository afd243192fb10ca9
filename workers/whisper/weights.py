"""Reads a model's weight files into arrays under mlx-whisper's names, whatever layout they have.

Knows names, layouts and quantization; knows neither the model class nor where the files came from.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from protocol.errors import ModelNotConfigured

Weights = dict[str, mx.array]

ENCODER_POSITIONS = "encoder.positional_embedding"
"""Not a parameter of mlx-whisper, which computes the sinusoids; transformers stores them."""

_TRANSFORMERS = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"\.layers\."), ".blocks."),
    (re.compile(r"\.self_attn_layer_norm\."), ".attn_ln."),
    (re.compile(r"\.encoder_attn_layer_norm\."), ".cross_attn_ln."),
    (re.compile(r"\.final_layer_norm\."), ".mlp_ln."),
    (re.compile(r"\.self_attn\."), ".attn."),
    (re.compile(r"\.encoder_attn\."), ".cross_attn."),
    (re.compile(r"\.q_proj\."), ".query."),
    (re.compile(r"\.k_proj\."), ".key."),
    (re.compile(r"\.v_proj\."), ".value."),
    (re.compile(r"\.out_proj\."), ".out."),
    (re.compile(r"\.fc([12])\."), r".mlp\1."),
    (re.compile(r"^encoder\.layer_norm\."), "encoder.ln_post."),
    (re.compile(r"^decoder\.layer_norm\."), "decoder.ln."),
    (re.compile(r"^decoder\.embed_tokens\."), "decoder.token_embedding."),
    (re.compile(r"^(encoder|decoder)\.embed_positions\.weight$"), r"\1.positional_embedding"),
)


def read(files: Sequence[Path], name: str) -> Weights:
    """All arrays of `files` under mlx-whisper's names, not evaluated yet. Raises ModelNotConfigured."""
    found: Weights = {}
    for file in files:
        found.update(_read(file, name))
    return _from_transformers(found) if any(".self_attn." in key for key in found) else found


def dequantize(weights: Weights, quantization: dict[str, Any]) -> Weights:
    """Plain weights for backends whose quantized products are slow: the CPU's never reach BLAS."""
    plain = {key: array for key, array in weights.items() if f"{key.removesuffix('.weight')}.scales" not in weights}
    for key in [key for key in weights if key.endswith(".scales")]:
        module = key.removesuffix(".scales")
        plain.pop(key)
        plain.pop(f"{module}.biases", None)
        plain[f"{module}.weight"] = mx.dequantize(
            weights[f"{module}.weight"],
            scales=weights[key],
            biases=weights.get(f"{module}.biases"),
            **options(quantization, module),
        )
    return plain


def options(quantization: dict[str, Any], module: str) -> dict[str, Any]:
    """group_size, bits and mode of one module; a configuration may make exceptions by its name."""
    exception = quantization.get(module)
    merged = {**quantization, **exception} if isinstance(exception, dict) else quantization
    return {key: merged[key] for key in ("group_size", "bits", "mode") if key in merged}


def _read(file: Path, name: str) -> Weights:
    try:
        if file.suffix == ".safetensors":
            _check_length(file, name)
        found = mx.load(str(file))
    except (RuntimeError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise ModelNotConfigured(f"{name}: {file.name} cannot be read; it is damaged or incomplete") from error
    if not isinstance(found, dict):
        raise ModelNotConfigured(f"{name}: {file.name} holds no named arrays")
    return found


def _check_length(file: Path, name: str) -> None:
    """MLX reads a cut file only when its arrays are evaluated, far from here: compare the header with the length."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        size = file.stat().st_size
        if length > size - 8:
            raise ValueError("cut within its header")
        header = json.loads(stream.read(length))
    ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    if 8 + length + max(ends, default=0) != size:
        raise ModelNotConfigured(f"{name}: {file.name} is incomplete; fetch it again")


def _from_transformers(found: Weights) -> Weights:
    renamed: Weights = {}
    for key, array in found.items():
        if key in ("proj_out.weight", "lm_head.weight"):  # tied to the token embedding
            continue
        for pattern, replacement in _TRANSFORMERS:
            key = pattern.sub(replacement, key)
        # (out, in, width) -> MLX's (out, width, in); files that other MLX programs wrote may have it already.
        is_conv = key in ("encoder.conv1.weight", "encoder.conv2.weight")
        renamed[key] = array.swapaxes(1, 2) if is_conv and array.shape[2] == 3 else array
    return renamed
