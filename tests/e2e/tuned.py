"""LoRA adapters of the starter as mlx-lm's tuner lays them out, with weights that change what is said.

Not trained: on a CPU some steps take minutes. Knows the tuner and both formats; knows no server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def tuned(folder: Path, model: Path, *, rank: int, seed: int, blocks: int = 2) -> Path:
    """An adapter in mlx-lm's format, of the model's last blocks."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import load_model

    folder.mkdir(parents=True)
    network, _ = load_model(model, lazy=True)
    network.freeze()
    mx.random.seed(seed)
    parameters = {"rank": rank, "scale": 20.0, "dropout": 0.0}
    linear_to_lora_layers(network, blocks, parameters)
    pairs: Any = tree_flatten(network.trainable_parameters())
    tensors = {
        name: mx.random.normal(array.shape) * 0.02 if name.endswith("lora_b") else array for name, array in pairs
    }
    mx.save_safetensors(str(folder / "adapters.safetensors"), tensors)
    config = {"fine_tune_type": "lora", "num_layers": blocks, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def as_peft(folder: Path, adapter: Path) -> Path:
    """The same adapter as PEFT would have written it."""
    import mlx.core as mx

    folder.mkdir(parents=True)
    config = json.loads((adapter / "adapter_config.json").read_bytes())["lora_parameters"]
    found: Any = mx.load(str(adapter / "adapters.safetensors"))
    tensors = {}
    for name, array in found.items():
        layer, _, part = name.rpartition(".lora_")
        tensors[f"base_model.model.{layer}.lora_{part.upper()}.weight"] = mx.contiguous(array.T)
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), tensors)
    told = {"peft_type": "LORA", "r": config["rank"], "lora_alpha": config["scale"] * config["rank"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder
