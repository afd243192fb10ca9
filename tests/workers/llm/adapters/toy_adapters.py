"""LoRA adapters with random weights, in both formats, for networks of any size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ALL = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def layers_of(network: Any, blocks: Sequence[int], names: Sequence[str] = ALL) -> dict[str, tuple[int, int]]:
    """Sizes (in, out) of a stock network's linear layers, by name."""
    found = {}
    for name, module in network.named_modules():
        place = name.split(".")
        if len(place) > 3 and int(place[2]) in blocks and ".".join(place[3:]) in names:
            out, ins = module.weight.shape
            found[name] = (ins * 32 // module.bits if "scales" in module else ins, out)
    assert found
    return found


def save_mlx_lm(
    folder: Path, sizes: dict[str, tuple[int, int]], *, rank: int = 4, scale: float = 2.0, seed: int = 1, **config: Any
) -> Path:
    """As mlx-lm's tuner writes them, but with a b that is not zero."""
    import mlx.core as mx

    mx.random.seed(seed)
    tensors = {}
    for name, (ins, out) in sizes.items():
        tensors[f"{name}.lora_a"] = mx.random.normal((ins, rank)) / ins**0.5
        tensors[f"{name}.lora_b"] = mx.random.normal((rank, out)) / rank**0.5
    keys = sorted({".".join(name.split(".")[3:]) for name in sizes})
    parameters = {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys}
    written = {"fine_tune_type": "lora", "num_layers": 16, "lora_parameters": parameters, **config}
    return write(folder, "adapters.safetensors", tensors, written)


def save_peft(
    folder: Path, sizes: dict[str, tuple[int, int]], *, rank: int = 4, alpha: float = 8.0, seed: int = 1, **config: Any
) -> Path:
    """The very numbers of `save_mlx_lm`, whose scale is alpha / rank here, as PEFT writes them."""
    import mlx.core as mx

    mx.random.seed(seed)
    tensors = {}
    for name, (ins, out) in sizes.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = mx.contiguous((mx.random.normal((ins, rank)) / ins**0.5).T)
        tensors[f"base_model.model.{name}.lora_B.weight"] = mx.contiguous((mx.random.normal((rank, out)) / rank**0.5).T)
    written = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "use_dora": False, **config}
    return write(folder, "adapter_model.safetensors", tensors, written)


def write(folder: Path, name: str, tensors: dict[str, Any], config: Any) -> Path:
    import mlx.core as mx

    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / name), tensors)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
