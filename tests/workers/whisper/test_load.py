"""Every layout a Whisper model comes in gives the same model; every broken one is explained. Random small weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import ModelNotConfigured
from workers import blas

DIMS = {
    "n_mels": 80,
    "n_audio_ctx": 8,
    "n_audio_state": 64,
    "n_audio_head": 2,
    "n_audio_layer": 2,
    "n_vocab": 51864,
    "n_text_ctx": 16,
    "n_text_state": 64,
    "n_text_head": 2,
    "n_text_layer": 2,
}
TRANSFORMERS_CONFIG = {
    "model_type": "whisper",
    "num_mel_bins": 80,
    "max_source_positions": 8,
    "d_model": 64,
    "encoder_attention_heads": 2,
    "encoder_layers": 2,
    "vocab_size": 51864,
    "max_target_positions": 16,
    "decoder_attention_heads": 2,
    "decoder_layers": 2,
}
NAMES = [  # ours, transformers'
    ("encoder.ln_post.", "encoder.layer_norm."),
    ("decoder.ln.", "decoder.layer_norm."),
    ("decoder.token_embedding.", "decoder.embed_tokens."),
    ("decoder.positional_embedding", "decoder.embed_positions.weight"),
    (".blocks.", ".layers."),
    (".cross_attn_ln.", ".encoder_attn_layer_norm."),
    (".attn_ln.", ".self_attn_layer_norm."),
    (".mlp_ln.", ".final_layer_norm."),
    (".cross_attn.", ".encoder_attn."),
    (".attn.", ".self_attn."),
    (".query.", ".q_proj."),
    (".key.", ".k_proj."),
    (".value.", ".v_proj."),
    (".out.", ".out_proj."),
    (".mlp1.", ".fc1."),
    (".mlp2.", ".fc2."),
]

Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def arrays(fast_blas: blas.Blas) -> Arrays:
    """Weights of the small model under mlx-whisper's names, float16."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_whisper.whisper import ModelDimensions, Whisper

    mx.random.seed(7)
    pairs: Any = tree_flatten(Whisper(ModelDimensions(**DIMS)).parameters())
    made = {
        name: (mx.random.normal(array.shape) * 0.1).astype(mx.float16)
        for name, array in pairs
        if name != "alignment_heads"
    }
    mx.eval(made)
    return made


def write(folder: Path, arrays: Arrays, name: str = "weights.safetensors", config: Any = DIMS) -> Path:
    import mlx.core as mx

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".npz"):
        mx.savez(str(folder / name), **arrays)
    else:
        mx.save_safetensors(str(folder / name), arrays)
    return folder


def to_transformers(arrays: Arrays) -> Arrays:
    import mlx.core as mx
    from mlx_whisper.whisper import sinusoids

    made: Arrays = {"proj_out.weight": arrays["decoder.token_embedding.weight"]}
    for name, array in arrays.items():
        for ours, theirs in NAMES:
            name = name.replace(ours, theirs)
        made[f"model.{name}"] = array.swapaxes(1, 2) if "conv" in name and array.ndim == 3 else array
    made["model.encoder.embed_positions.weight"] = sinusoids(8, 64).astype(mx.float16)
    return made


def load(folder: Path, half: bool = False) -> Any:
    import mlx.core as mx

    from workers.whisper.load import load

    dtype = mx.float16 if half else mx.float32
    return load(str(folder), data_dir=folder, offline=True, report=lambda _: None, dtype=dtype)


def logits(loaded: Any) -> np.ndarray[Any, Any]:
    import mlx.core as mx

    mx.random.seed(11)
    mel = mx.random.normal((1, 16, 80))
    return np.array(loaded.whisper(mel, mx.array([[1, 2, 3]])).astype(mx.float32))


@pytest.fixture(scope="module")
def expected(arrays: Arrays, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray[Any, Any]:
    """What mlx-whisper's own loader makes of the weights, in float32."""
    import mlx.core as mx
    from mlx_whisper.load_models import load_model

    folder = write(tmp_path_factory.mktemp("expected"), {k: a.astype(mx.float32) for k, a in arrays.items()})

    class Direct:
        whisper = load_model(str(folder), dtype=mx.float32)

    return logits(Direct)


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.npz", "model.safetensors"])
def test_mlx_layouts(arrays: Arrays, expected: np.ndarray[Any, Any], tmp_path: Path, name: str) -> None:
    loaded = load(write(tmp_path / "m", arrays, name, {"model_type": "whisper", **DIMS}))
    assert np.array_equal(logits(loaded), expected)
    assert loaded.model.dtype == "float32"


def test_transformers_layout(arrays: Arrays, expected: np.ndarray[Any, Any], tmp_path: Path) -> None:
    folder = write(tmp_path / "m", to_transformers(arrays), "model.safetensors", TRANSFORMERS_CONFIG)
    assert np.abs(logits(load(folder)) - expected).max() < 1e-3  # its encoder positions were rounded to float16


def test_transformers_shards(arrays: Arrays, expected: np.ndarray[Any, Any], tmp_path: Path) -> None:
    import mlx.core as mx

    named = list(to_transformers(arrays).items())
    folder = write(tmp_path / "m", dict(named[:40]), "model-00001-of-00002.safetensors", TRANSFORMERS_CONFIG)
    mx.save_safetensors(str(folder / "model-00002-of-00002.safetensors"), dict(named[40:]))
    shards = {name: f"model-0000{1 + (index >= 40)}-of-00002.safetensors" for index, (name, _) in enumerate(named)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert np.abs(logits(load(folder)) - expected).max() < 1e-3
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert refusal(folder) == "m is incomplete: model-00002-of-00002.safetensors is missing"


def test_weights_are_float32_or_float16_as_asked(arrays: Arrays, tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx.utils import tree_flatten

    folder = write(tmp_path / "m", arrays)
    for half, dtype in ((False, mx.float32), (True, mx.float16)):
        pairs: Any = tree_flatten(load(folder, half).whisper.parameters())
        assert {array.dtype for name, array in pairs if name != "alignment_heads"} == {dtype}


@pytest.fixture(scope="module")
def quantized(arrays: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as mlx-whisper's converter quantizes it: 8 bits in groups of 32."""
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize
    from mlx.utils import tree_flatten, tree_unflatten
    from mlx_whisper.whisper import ModelDimensions, Whisper

    whisper = Whisper(ModelDimensions(**DIMS), mx.float16)
    whisper.update(tree_unflatten(list(arrays.items())))
    quantize(whisper, group_size=32, bits=8)
    pairs: Any = tree_flatten(whisper.parameters())
    config = {**DIMS, "quantization": {"group_size": 32, "bits": 8}}
    return write(tmp_path_factory.mktemp("quantized") / "q", dict(pairs), config=config)


def test_a_quantized_model_is_plain_float32_on_the_cpu(quantized: Path, expected: np.ndarray[Any, Any]) -> None:
    from mlx.nn.layers.linear import Linear

    loaded = load(quantized)
    assert type(loaded.whisper.encoder.blocks[0].mlp1) is Linear
    assert loaded.model.dtype == "float32"
    assert np.corrcoef(logits(loaded).ravel(), expected.ravel())[0, 1] > 0.999


def test_a_quantized_model_stays_quantized_on_a_gpu(quantized: Path) -> None:
    from mlx.nn.layers.quantized import QuantizedLinear

    loaded = load(quantized, half=True)
    assert type(loaded.whisper.encoder.blocks[0].mlp1) is QuantizedLinear
    assert loaded.model.dtype == "8-bit"
    plain = load(quantized)
    assert loaded.model.parameters == plain.model.parameters
    assert np.corrcoef(logits(loaded).ravel(), logits(plain).ravel())[0, 1] > 0.999


def refusal(folder: Path) -> str:
    with pytest.raises(ModelNotConfigured) as refused:
        load(folder)
    assert str(folder.parent) not in refused.value.message
    return refused.value.message


def without(*names: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {name: array for name, array in arrays.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("decoder.ln.bias"), "m is incomplete: decoder.ln.bias missing from its weights"),
        (
            lambda arrays: {**arrays, "extra.weight": arrays["decoder.ln.bias"]},
            "m is no Whisper model as its config.json says: it also has extra.weight",
        ),
        (
            lambda arrays: {**arrays, "decoder.ln.bias": arrays["decoder.ln.bias"][:63]},
            "m: decoder.ln.bias has the shape (63,) instead of (64,)",
        ),
    ],
)
def test_wrong_weights_are_named(
    arrays: Arrays, tmp_path: Path, change: Callable[[Arrays], Arrays], message: str
) -> None:
    assert refusal(write(tmp_path / "m", change(arrays))) == message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bert"}, "m is no Whisper model but 'bert'"),
        ({"a": 1}, "m is no Whisper model: its config.json names none of Whisper's dimensions"),
        ({**DIMS, "n_vocab": 32000}, "m: no tokenizer is known for a vocabulary of 32000"),
        ({"n_mels": 80, "n_vocab": 51864}, "m: config.json lacks n_audio_ctx, n_audio_head, n_audio_layer, "),
        ([], "m: config.json holds no object"),
        ({**DIMS, "quantization": "int8"}, "m is quantized in a way that MLX does not know"),
    ],
)
def test_a_wrong_configuration_is_named(arrays: Arrays, tmp_path: Path, config: Any, message: str) -> None:
    assert refusal(write(tmp_path / "m", arrays, config=config)).startswith(message)


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.npz"])
def test_cut_weights_are_noticed(arrays: Arrays, tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "m", arrays, name)
    data = (folder / name).read_bytes()
    for length in (0, 4, 100, len(data) // 2, len(data) - 1):
        (folder / name).write_bytes(data[:length])
        assert refusal(folder) in (
            f"m: {name} is incomplete; fetch it again",
            f"m: {name} cannot be read; it is damaged or incomplete",
        )


def test_a_folder_without_weights_names_what_would_do(arrays: Arrays, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", arrays)
    (folder / "weights.safetensors").rename(folder / "pytorch_model.bin")
    assert refusal(folder) == (
        "m has no weights: none of weights.safetensors, weights.npz, model.safetensors, "
        "model.safetensors.index.json is there"
    )


def test_an_empty_folder_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert refusal(tmp_path / "m") == "m is no Whisper model: it has no config.json"
    assert refusal(tmp_path / "nowhere") == (
        "there is no speech model 'nowhere': name a folder, a Hugging Face id (owner/name) "
        "or a starter (whisper-base, whisper-tiny.en)"
    )


def heads(loaded: Any) -> Any:
    return loaded.whisper.alignment_heads.tolist()


def test_alignment_heads_come_from_the_weights_before_the_generation_config(arrays: Arrays, tmp_path: Path) -> None:
    import mlx.core as mx

    folder = write(tmp_path / "m", arrays)
    assert heads(load(folder)) == [[1, 0], [1, 1]]  # mlx-whisper's stopgap: no published model has this shape
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": [[0, 1]]}))
    assert heads(load(folder)) == [[0, 1]]
    write(folder, {**arrays, "alignment_heads": mx.array([[1, 1]])})
    assert heads(load(folder)) == [[1, 1]]
    write(folder, {**arrays, "alignment_heads": mx.array([[1, 0], [1, 1]])})
    assert heads(load(folder)) == [[0, 1]]


@pytest.mark.parametrize(
    ("name", "change", "languages", "translates"),
    [
        ("whisper-small", {}, 99, True),
        ("whisper-large-v3", {"n_vocab": 51866}, 100, True),
        ("whisper-small.en", {"n_vocab": 51864}, 1, False),
        ("large-v3-turbo", {"n_vocab": 51866, "n_audio_layer": 32, "n_text_layer": 4}, 100, False),
        ("renamed", {"n_vocab": 51866, "n_audio_layer": 32, "n_text_layer": 4}, 100, False),
        ("distil-large-v2", {"n_audio_layer": 32, "n_text_layer": 2}, 99, False),
    ],
)
def test_what_a_model_can_do(name: str, change: dict[str, int], languages: int, translates: bool) -> None:
    from mlx_whisper.whisper import ModelDimensions

    from workers.whisper.load import describe

    model = describe(ModelDimensions(**{**DIMS, "n_vocab": 51865, **change}), name, 1, "float32")
    assert (len(model.languages), model.translates) == (languages, translates)
    assert ("yue" in model.languages) == (languages == 100)


def test_a_model_is_called_as_it_was_given_but_a_folder_by_its_name(tmp_path: Path) -> None:
    from workers.whisper.load import display_name

    assert display_name("whisper-base") == "whisper-base"
    assert display_name("openai/whisper-tiny") == "openai/whisper-tiny"
    assert display_name(str(tmp_path / "my-whisper")) == "my-whisper"
