"""CTranslate2's file as it is described, written here byte by byte and read back."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from workers.starter import ctranslate2

STATE, VOCABULARY, MELS = 4, 11, 80


def text(value: str) -> bytes:
    data = value.encode() + b"\0"
    return struct.pack("<H", len(data)) + data


def variable(name: str, array: np.ndarray[Any, Any]) -> bytes:
    kind = {np.dtype(np.float16): 4, np.dtype(np.int16): 2, np.dtype(np.int8): 1}[array.dtype]
    shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
    return text(name) + shape + struct.pack("<BI", kind, array.nbytes) + array.tobytes()


def file(variables: dict[str, np.ndarray[Any, Any]], spec: str = "WhisperSpec", version: int = 6) -> bytes:
    alias = text("decoder/projection/weight") + text("decoder/embeddings/weight")
    head = struct.pack("<I", version) + text(spec) + struct.pack("<II", 3, len(variables))
    return head + b"".join(variable(*pair) for pair in variables.items()) + struct.pack("<I", 1) + alias


def tiny() -> dict[str, np.ndarray[Any, Any]]:
    """A model of one layer and four channels; every number in it is another one, and keys have no bias."""
    counter = iter(range(10**6))

    def numbers(*shape: int) -> np.ndarray[Any, Any]:
        return np.array([next(counter) for _ in range(int(np.prod(shape)))], np.float16).reshape(shape)

    found: dict[str, np.ndarray[Any, Any]] = {
        "encoder/num_heads": np.array(2, np.int16),
        "decoder/num_heads": np.array(2, np.int16),
        "encoder/conv1/weight": numbers(STATE, MELS, 3),
        "encoder/conv1/bias": numbers(STATE),
        "encoder/conv2/weight": numbers(STATE, STATE, 3),
        "encoder/conv2/bias": numbers(STATE),
        "encoder/position_encodings/encodings": numbers(6, STATE),
        "decoder/position_encodings/encodings": numbers(5, STATE),
        "decoder/embeddings/weight": numbers(VOCABULARY, STATE),
    }
    norms = ["encoder/layer_norm", "decoder/layer_norm"]
    linears = []
    for side in ("encoder", "decoder"):
        layer = f"{side}/layer_0"
        norms += [f"{layer}/self_attention/layer_norm", f"{layer}/ffn/layer_norm"]
        linears += [(f"{layer}/self_attention/linear_0", 3 * STATE, STATE)]
        linears += [(f"{layer}/self_attention/linear_1", STATE, STATE)]
        linears += [(f"{layer}/ffn/linear_0", 4 * STATE, STATE), (f"{layer}/ffn/linear_1", STATE, 4 * STATE)]
    cross = "decoder/layer_0/attention"
    norms.append(f"{cross}/layer_norm")
    linears += [(f"{cross}/linear_0", STATE, STATE), (f"{cross}/linear_1", 2 * STATE, STATE)]
    linears.append((f"{cross}/linear_2", STATE, STATE))
    for name in norms:
        found |= {f"{name}/gamma": numbers(STATE), f"{name}/beta": numbers(STATE)}
    for name, rows, columns in linears:
        found |= {f"{name}/weight": numbers(rows, columns), f"{name}/bias": numbers(rows)}
    found["encoder/layer_0/self_attention/linear_0/bias"][STATE : 2 * STATE] = 0
    found["decoder/layer_0/self_attention/linear_0/bias"][STATE : 2 * STATE] = 0
    found[f"{cross}/linear_1/bias"][:STATE] = 0
    return found


def test_every_variable_comes_back_under_its_name() -> None:
    written = tiny()
    read = ctranslate2.parse(file(written))
    assert read.keys() == written.keys() | {"decoder/projection/weight"}
    assert all(np.array_equal(read[name], array) for name, array in written.items())
    assert np.array_equal(read["decoder/projection/weight"], written["decoder/embeddings/weight"])


def test_dimensions_are_those_of_the_tensors() -> None:
    assert ctranslate2.dimensions(tiny()) == {
        "n_mels": 80,
        "n_audio_ctx": 6,
        "n_audio_state": 4,
        "n_audio_head": 2,
        "n_audio_layer": 1,
        "n_vocab": 11,
        "n_text_ctx": 5,
        "n_text_state": 4,
        "n_text_head": 2,
        "n_text_layer": 1,
    }


def test_fused_projections_are_taken_apart_in_order() -> None:
    written = tiny()
    made = ctranslate2.to_mlx(written)
    fused = written["decoder/layer_0/self_attention/linear_0/weight"]
    assert np.array_equal(made["decoder.blocks.0.attn.query.weight"], fused[0:4])
    assert np.array_equal(made["decoder.blocks.0.attn.key.weight"], fused[4:8])
    assert np.array_equal(made["decoder.blocks.0.attn.value.weight"], fused[8:12])
    crossed = written["decoder/layer_0/attention/linear_1/bias"]
    assert np.array_equal(made["decoder.blocks.0.cross_attn.value.bias"], crossed[4:8])
    assert "decoder.blocks.0.cross_attn.key.bias" not in made


def test_convolutions_are_transposed_for_mlx() -> None:
    written = tiny()
    made = ctranslate2.to_mlx(written)
    assert made["encoder.conv1.weight"].shape == (4, 3, 80)
    assert made["encoder.conv1.weight"][1, 2, 7] == written["encoder/conv1/weight"][1, 7, 2]


def test_the_names_are_all_of_mlx_whispers_and_no_others() -> None:
    from mlx.utils import tree_flatten
    from mlx_whisper.whisper import ModelDimensions, Whisper

    parameters: Any = tree_flatten(Whisper(ModelDimensions(**ctranslate2.dimensions(tiny()))).parameters())
    made = ctranslate2.to_mlx(tiny())
    assert {name: array.shape for name, array in made.items()} == {
        name: array.shape for name, array in parameters if name != "alignment_heads"
    }


def test_a_bias_of_the_keys_is_refused() -> None:
    written = tiny()
    written["decoder/layer_0/attention/linear_1/bias"][0] = 1
    with pytest.raises(ctranslate2.FormatError, match="a bias for its keys"):
        ctranslate2.to_mlx(written)


def test_a_file_cut_anywhere_is_an_error_of_the_format() -> None:
    whole = file(tiny())
    for length in [*range(400), *range(400, len(whole), 97), len(whole) - 1]:
        with pytest.raises(ctranslate2.FormatError):
            ctranslate2.parse(whole[:length])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (file(tiny()) + b"x", "1 bytes too many"),
        (file(tiny(), spec="TransformerSpec"), "not a Whisper model of format 6.3: 'TransformerSpec' 6.3"),
        (file(tiny(), version=5), "not a Whisper model of format 6.3: 'WhisperSpec' 5.3"),
        (file({"a": np.zeros(3, np.float16)}), "decoder/projection/weight stands for decoder/embeddings/weight"),
    ],
)
def test_a_foreign_file_is_an_error_of_the_format(data: bytes, message: str) -> None:
    with pytest.raises(ctranslate2.FormatError, match=message):
        ctranslate2.parse(data)


def test_a_model_without_a_tensor_names_it() -> None:
    written = tiny()
    del written["decoder/layer_0/ffn/linear_1/bias"]
    with pytest.raises(ctranslate2.FormatError, match="decoder/layer_0/ffn/linear_1/bias is missing"):
        ctranslate2.to_mlx(written)
