"""Folders that are no adapter of this model: each is refused, with the layer or member at fault."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InvalidValue
from tests.workers.llm.adapters.toy_adapters import save_mlx_lm, save_peft, write

Q = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.1.mlp.down_proj"
SIZES = {Q: (32, 48), DOWN: (64, 32)}


def wrong(folder: Path) -> str:
    from workers.llm.adapters.files import read

    with pytest.raises(InvalidValue) as raised:
        read(folder, "mine", SIZES)
    assert raised.value.param == "path"
    start = "the adapter 'mine' cannot be mounted: "
    assert raised.value.message.startswith(start)
    assert str(folder) not in raised.value.message
    return raised.value.message.removeprefix(start)


@pytest.fixture
def folder(fast_blas: Any, tmp_path: Path) -> Path:
    return save_mlx_lm(tmp_path / "ours", SIZES)


@pytest.fixture
def peft(fast_blas: Any, tmp_path: Path) -> Path:
    return save_peft(tmp_path / "peft", SIZES)


def set_config(folder: Path, **members: Any) -> Path:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | members))
    return folder


def change(folder: Path, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """Its tensors, changed."""
    import mlx.core as mx

    file = next(folder.glob("*.safetensors"))
    found: Any = mx.load(str(file))
    tensors = {name: mx.array(array) for name, array in found.items()}
    mx.eval(tensors)
    mx.save_safetensors(str(file), changed(tensors))
    return folder


def test_a_whole_adapter_is_read_with_its_scale_in_b(folder: Path) -> None:
    import mlx.core as mx

    from workers.llm.adapters.files import read

    found = read(folder, "mine", SIZES)
    raw: Any = mx.load(str(folder / "adapters.safetensors"))
    assert (found.rank, found.scale, list(found.pairs)) == (4, 2.0, sorted(SIZES))
    assert mx.array_equal(found.pairs[Q].a, raw[f"{Q}.lora_a"])
    assert mx.array_equal(found.pairs[Q].b, 2.0 * raw[f"{Q}.lora_b"])


def test_peft_s_patterns_give_layers_ranks_and_alphas_of_their_own(fast_blas: Any, tmp_path: Path) -> None:
    from workers.llm.adapters.files import read

    low = save_peft(tmp_path / "low", {Q: SIZES[Q]}, rank=2)
    high = save_peft(tmp_path / "high", {DOWN: SIZES[DOWN]}, rank=6)
    import mlx.core as mx

    tensors: Any = mx.load(str(low / "adapter_model.safetensors")) | mx.load(str(high / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "rank_pattern": {"down_proj": 6}}
    both = write(tmp_path / "both", "adapter_model.safetensors", tensors, config)
    found = read(set_config(both, alpha_pattern={f"layers.1.{DOWN.split('.', 3)[3]}": 12}), "mine", SIZES)
    assert (found.rank, found.pairs[Q].a.shape, found.pairs[DOWN].a.shape) == (6, (32, 2), (64, 6))
    assert mx.allclose(found.pairs[Q].b, 4 * tensors[f"base_model.model.{Q}.lora_B.weight"].T)
    assert mx.allclose(found.pairs[DOWN].b, 2 * tensors[f"base_model.model.{DOWN}.lora_B.weight"].T)


def test_a_wrong_shape_names_the_layer_and_what_it_needs(fast_blas: Any, tmp_path: Path) -> None:
    assert wrong(save_mlx_lm(tmp_path / "a", SIZES | {DOWN: (64, 40)})) == (
        f"{DOWN}: its matrices are 64 x 4 and 4 x 40, but the model and rank 4 need 64 x 4 and 4 x 32"
    )


def test_a_rank_that_is_not_the_file_s_names_the_layer(folder: Path) -> None:
    told = wrong(set_config(folder, lora_parameters={"rank": 8, "scale": 2.0}))
    assert "rank 8 need 32 x 8 and 8 x 48" in told and Q in told


def test_a_layer_that_the_model_lacks_is_named(fast_blas: Any, tmp_path: Path) -> None:
    told = wrong(save_mlx_lm(tmp_path / "a", SIZES | {"model.layers.30.self_attn.q_proj": (32, 48)}))
    assert told == "model.layers.30.self_attn.q_proj: the model has no such linear layer in its blocks"


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"fine_tune_type": "dora"}, "adapter_config.json: fine_tune_type 'dora' is not supported; lora is"),
        ({"lora_parameters": None}, "adapter_config.json has no object lora_parameters"),
        (
            {"lora_parameters": {"rank": 0, "scale": 1}},
            "adapter_config.json: lora_parameters.rank must be a whole number from 1 to 1024, not '0'",
        ),
        (
            {"lora_parameters": {"rank": 4, "alpha": 8}},
            "adapter_config.json: lora_parameters.scale must be a number, not 'None'",
        ),
        (
            {"lora_parameters": {"rank": True, "scale": 1}},
            "adapter_config.json: lora_parameters.rank must be a whole number from 1 to 1024, not 'True'",
        ),
        ({"peft_type": "LORA"}, "it has neither adapters.safetensors nor adapter_model.safetensors"),
    ],
)
def test_what_is_wrong_with_mlx_lm_s_configuration_is_named(folder: Path, members: Any, told: str) -> None:
    assert wrong(set_config(folder, **members)) == told


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"peft_type": "IA3"}, "adapter_config.json: peft_type 'IA3' is not supported; LORA is"),
        ({"use_dora": True}, "adapter_config.json: use_dora 'True' is not supported"),
        ({"bias": "all"}, "adapter_config.json: bias 'all' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "adapter_config.json: modules_to_save \"['lm_head']\" is not supported"),
        ({"r": "4"}, "adapter_config.json: r must be a whole number from 1 to 1024, not '4'"),
        ({"lora_alpha": None}, "adapter_config.json: lora_alpha must be a number, not 'None'"),
        ({"rank_pattern": [4]}, "adapter_config.json: rank_pattern must be an object"),
    ],
)
def test_what_is_wrong_with_peft_s_configuration_is_named(peft: Path, members: Any, told: str) -> None:
    assert wrong(set_config(peft, **members)) == told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "adapter_config.json is no JSON"),
        (b"\xff\xfe", "adapter_config.json is no JSON"),
        (b"[" * 100_000, "adapter_config.json is no JSON"),
        (b"[]", "adapter_config.json holds no object"),
        (b" " * (2 << 20), "adapter_config.json is larger than 1048576 bytes"),
    ],
)
def test_a_configuration_that_is_none_is_refused(folder: Path, content: bytes, told: str) -> None:
    (folder / "adapter_config.json").write_bytes(content)
    assert wrong(folder) == told


def test_missing_files_are_named_and_pipes_are_not_waited_for(folder: Path) -> None:
    (folder / "adapters.safetensors").unlink()
    assert wrong(folder) == "it has neither adapters.safetensors nor adapter_model.safetensors"
    os.mkfifo(folder / "adapters.safetensors")
    assert wrong(folder) == "it has no adapters.safetensors"
    (folder / "adapter_config.json").unlink()
    os.mkfifo(folder / "adapter_config.json")
    assert wrong(folder) == "it has no adapter_config.json"


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_file_that_was_cut_off_is_refused(folder: Path, kept: int) -> None:
    file = folder / "adapters.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert wrong(folder) == "adapters.safetensors is incomplete or no safetensors file"


def test_a_file_whose_header_lies_is_refused(folder: Path) -> None:
    file = folder / "adapters.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"F99"'))
    assert wrong(folder) == "adapters.safetensors is no safetensors file that can be read"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_name_the_layer(folder: Path, value: float) -> None:
    def spoil(tensors: dict[str, Any]) -> dict[str, Any]:
        tensors[f"{DOWN}.lora_b"][1, 2] = value
        return tensors

    assert wrong(change(folder, spoil)) == f"{DOWN}: its weights are not all finite"


def test_whole_numbers_are_no_weights(folder: Path) -> None:
    import mlx.core as mx

    told = wrong(change(folder, lambda tensors: tensors | {f"{Q}.lora_a": mx.zeros((32, 4), mx.int32)}))
    assert told == f"{Q}: its numbers are mlx.core.int32, not floating-point"


def test_half_a_pair_names_the_layer(folder: Path) -> None:
    def halve(tensors: dict[str, Any]) -> dict[str, Any]:
        del tensors[f"{Q}.lora_b"]
        return tensors

    assert wrong(change(folder, halve)) == f"{Q}: one of its two matrices is missing"


def test_tensors_of_another_kind_are_named(folder: Path) -> None:
    import mlx.core as mx

    told = wrong(change(folder, lambda tensors: {f"{Q}.weight": mx.zeros((4, 4))} | tensors))
    assert told == f"{Q}.weight is no part of a LoRA adapter for linear layers"
    told = wrong(change(folder, lambda tensors: {f"{Q}.lora_a": mx.zeros((3, 4, 4))}))
    assert told == f"{Q}: only adapters of plain linear layers are supported"


def test_a_file_without_tensors_is_refused(folder: Path) -> None:
    assert wrong(change(folder, lambda _: {})) == "adapters.safetensors has no matrices"
