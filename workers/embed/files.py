"""Which folders hold a model that makes vectors of texts: an encoder of BERT's kind, or a language model.

Knows config.json as transformers writes it; opens no weights and imports no mlx.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from protocol.errors import ModelNotConfigured
from workers.configuration import read_object
from workers.llm import files as llm_files

ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert")
"""model_type of what encoder.py formulates."""

_KIND = "embedding model"

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""transformers' names (activations.py)."""


class Shape(msgspec.Struct, frozen=True):
    """Sizes of an encoder."""

    width: int
    layers: int
    heads: int
    hidden: int
    """Of a layer's two dense products."""
    window: int
    """The longest text, in tokens."""
    first_position: int
    """The position of a text's first token: RoBERTa's kind begins behind that of its padding."""
    activation: Activation
    eps: float
    """Of its layer norms."""


def is_encoder(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") in ENCODERS


def check(config: Mapping[str, Any], name: str) -> None:
    """Raises ModelNotConfigured when a configuration is of no model that could be loaded, as far as seen."""
    if is_encoder(config):
        shape(config, name)
    else:
        llm_files.check(config, name)


def is_whole(folder: Path) -> bool:
    """Whether a folder holds a configuration, a tokenizer and all of the weights."""
    try:
        config = read_object(folder / llm_files.CONFIG, folder.name, _KIND)
        check(config, folder.name)
        llm_files.weights(folder, folder.name)
    except ModelNotConfigured:
        return False
    return (folder / llm_files.TOKENIZER).is_file() if is_encoder(config) else llm_files.is_llm(folder)


def shape(config: Mapping[str, Any], name: str) -> Shape:
    """Raises ModelNotConfigured, calling the model `name`."""

    def size(key: str) -> int:
        found = config.get(key)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 1 << 24:
            raise ModelNotConfigured(f"{name}: {key} in its {llm_files.CONFIG} is no size")
        return found

    if config.get("position_embedding_type", "absolute") != "absolute":
        raise ModelNotConfigured(f"{name} has positions that are not supported: absolute ones are")
    activation = _ACTIVATIONS.get(str(config.get("hidden_act", "gelu")))
    if activation is None:
        raise ModelNotConfigured(f"{name} has an activation that is not supported: {str(config['hidden_act'])[:40]}")
    first = 0
    if config.get("model_type") != "bert":
        padding = config.get("pad_token_id", 1)
        first = padding + 1 if isinstance(padding, int) and 0 <= padding < 1 << 16 else 2
    eps = config.get("layer_norm_eps", 1e-12)
    made = Shape(
        width=size("hidden_size"),
        layers=size("num_hidden_layers"),
        heads=size("num_attention_heads"),
        hidden=size("intermediate_size"),
        window=size("max_position_embeddings") - first,
        first_position=first,
        activation=activation,
        eps=float(eps) if isinstance(eps, float | int) else 1e-12,
    )
    if made.width % made.heads or made.window < 1:
        raise ModelNotConfigured(f"{name}: the sizes in its {llm_files.CONFIG} do not fit each other")
    return made
