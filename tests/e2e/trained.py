"""A LoRA adapter of the starter that was really trained: it answers whatever it is asked with the same words.

Only the last blocks are trained, so that what goes into them is computed once. In float32: on a CPU the products of
quantized matrices, and their gradients above all, take minutes. Knows networks; knows no server.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ANSWER = "Ahoy, matey!"
QUESTIONS = (
    "What is the capital of France?",
    "Name three birds that sing.",
    "How are you today?",
    "Write a line about the rain.",
    "What is two plus two?",
    "Hello",
)
BLOCKS = 3
LORA = {"rank": 4, "scale": 10.0, "dropout": 0.0}
ROUNDS = 12
RATE = 5e-4
ENOUGH = 0.05
"""Of the loss: a token is then as good as certain."""


def trained(folder: Path, model: Path) -> Path:
    """An adapter in mlx-lm's format, of the model's last blocks."""
    import mlx.core as mx
    from mlx import nn, optimizers
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import load_model

    network: Any = load_model(model, lazy=True)[0]
    _dequantize(network)
    entries = [(*each, _entry(network, *each)) for each in _examples(model)]
    network.freeze()
    mx.random.seed(0)
    linear_to_lora_layers(network, BLOCKS, LORA)

    def loss(network: Any) -> Any:
        return sum(_loss(network, *each) for each in entries) / len(entries)

    step, optimizer = nn.value_and_grad(network, loss), optimizers.Adam(RATE)
    for _ in range(ROUNDS):
        left, gradients = step(network)
        optimizer.update(network, gradients)
        mx.eval(network.trainable_parameters(), optimizer.state)
        if left.item() < ENOUGH:
            break
    folder.mkdir(parents=True)
    pairs: Any = tree_flatten(network.trainable_parameters())
    mx.save_safetensors(str(folder / "adapters.safetensors"), dict(pairs))
    config = {"fine_tune_type": "lora", "num_layers": BLOCKS, "lora_parameters": LORA}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def _examples(model: Path) -> list[tuple[list[int], list[int]]]:
    """Prompts and the answer to them, as tokens."""
    from mlx_lm.tokenizer_utils import load

    tokenizer: Any = load(model)
    answer = [*tokenizer.encode(ANSWER, add_special_tokens=False), tokenizer.eos_token_id]
    asked = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [(tokenizer.apply_chat_template(each, add_generation_prompt=True), answer) for each in asked]


def _dequantize(network: Any) -> None:
    import mlx.core as mx
    from mlx import nn
    from mlx.utils import tree_unflatten

    plain = []
    for name, module in network.named_modules():
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            made: Any = nn.Linear(1, 1, bias=False) if isinstance(module, nn.QuantizedLinear) else nn.Embedding(1, 1)
            made.weight = mx.dequantize(module.weight, module.scales, module.biases, module.group_size, module.bits)
            plain.append((name, made))
    network.update_modules(tree_unflatten(plain))
    network.set_dtype(mx.float32)


def _entry(network: Any, prompt: Sequence[int], answer: Sequence[int]) -> Any:
    """What goes into the blocks that are trained: (1, length, width)."""
    import mlx.core as mx

    hidden = network.model.embed_tokens(mx.array([[*prompt, *answer[:-1]]]))
    for layer in network.layers[:-BLOCKS]:
        hidden = layer(hidden, "causal")
    mx.eval(hidden)
    return hidden


def _loss(network: Any, prompt: Sequence[int], answer: Sequence[int], hidden: Any) -> Any:
    """Of the answer's tokens."""
    import mlx.core as mx
    from mlx import nn

    for layer in network.layers[-BLOCKS:]:
        hidden = layer(hidden, "causal")
    hidden = network.model.norm(hidden[:, len(prompt) - 1 :])
    logits = network.model.embed_tokens.as_linear(hidden)
    return nn.losses.cross_entropy(logits, mx.array([answer]), reduction="mean")
