"""Turns a model's name into a loaded language model: a folder, a Hugging Face id or a starter.

Knows where models come from and what mlx-lm says of broken ones; knows nothing about generating.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import msgspec
from huggingface_hub.errors import StrictDataclassError
from mlx.nn.layers.positional_encoding import RoPE
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE
from mlx_lm.tokenizer_utils import load as load_tokenizer
from mlx_lm.utils import _get_classes, _tokenizer_defaults, get_total_parameters, load_model

from protocol import events
from protocol.errors import ModelNotConfigured
from workers import safetensors
from workers.llm import files
from workers.llm.cpu.install import install
from workers.llm.cpu.network import ARCHITECTURES
from workers.llm.cpu.plain import to_float32
from workers.llm.files import Defaults
from workers.llm.pooling import Pooling, describe
from workers.llm.texts import Embedder, Tokens
from workers.llm.vectors import Decoder, width_of
from workers.source import display_name, find

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


_log = logging.getLogger(__name__)

WARM_UP = 512
"""Tokens: as long a prompt as is usual."""


class Loaded(msgspec.Struct, frozen=True):
    """A model that is ready, in the thread that called `load`; only that thread may use it."""

    network: Any
    """mlx-lm's model: tokens (rows, length), cache=[one for each layer] -> logits (rows, length, vocabulary)."""
    tokenizer: TokenizerWrapper
    model: events.Model
    defaults: Defaults
    vocabulary: int
    """Width of the logits; may be more than the tokenizer's tokens, or less."""
    embedder: Embedder | None = None
    """None: it gives no vectors of texts."""

    @property
    def head(self) -> Callable[[mx.array], mx.array] | None:
        """What makes logits of what `network.model` returns (rows, length, width); None where more belongs to it."""
        if type(self.network) not in ARCHITECTURES:
            return None
        found: Callable[[mx.array], mx.array] = (
            self.network.model.embed_tokens.as_linear if self.network.args.tie_word_embeddings else self.network.lm_head
        )
        return found


def load(
    model: str,
    *,
    data_dir: str | Path,
    offline: bool,
    report: Callable[[events.Loading], None],
    threads: int = 0,
    tuned: bool = True,
) -> Loaded:
    """Find, fetch or convert `model` and read it. On a CPU it computes in float32.

    threads: on a CPU; 0 is one for each core. tuned: on a CPU, in place of mlx-lm's own modules. Raises
    ModelNotConfigured, worded for clients, when it cannot be had.
    """
    name = display_name(model)
    folder = find(model, "llm", data_dir=data_dir, offline=offline, report=report)
    return read(folder, name, data_dir=data_dir, report=report, threads=threads, tuned=tuned)


def read(
    folder: Path,
    name: str,
    *,
    data_dir: str | Path,
    report: Callable[[events.Loading], None],
    threads: int = 0,
    tuned: bool = True,
    pooling: Pooling = "mean",
) -> Loaded:
    """As `load`, from a folder. pooling: of tokens' vectors, where the folder does not say."""
    report(events.Loading(f"loading {name}"))
    found = files.describe(folder, name)
    network, config = _read(folder, name)
    _fix_angles(network, found.context_window)
    tokenizer = _read_tokenizer(folder, config, name)
    parameters = get_total_parameters(network)  # type: ignore[no-untyped-call]
    cpu = mx.default_device() == mx.Device(mx.cpu)
    kind = _dtype(network, config)
    try:
        if not cpu:
            mx.eval(network.parameters())
        elif not tuned or not install(network, Path(data_dir) / "blas", threads):
            to_float32(network)
            mx.eval(network.parameters())
            kind = "float32"
    except RuntimeError as error:
        raise ModelNotConfigured(f"{name}: its weights cannot be read; fetch them again") from error
    report(events.Loading(f"warming {name} up"))
    vocabulary = _warm_up(network, min(WARM_UP if cpu and tuned else 1, found.context_window // 2))
    embedder = _embedder(network, tokenizer, vocabulary, folder, found.context_window, pooling)
    described = events.Model(
        id=name,
        kind="llm",
        languages=(),
        translates=False,
        parameters=parameters,
        dtype=kind,
        context_window=found.context_window,
        embedding_width=embedder.network.width if embedder else 0,
    )
    return Loaded(network, tokenizer, described, found.defaults, vocabulary, embedder)


def _embedder(
    network: Any, tokenizer: TokenizerWrapper, vocabulary: int, folder: Path, window: int, pooling: Pooling
) -> Embedder | None:
    """None where the network has no vectors, or is to pool them in a way that is not known here: it chats all the
    same."""
    width = width_of(network, vocabulary)
    try:
        said = describe(folder, folder.name)
    except ModelNotConfigured as error:
        _log.warning("no embeddings: %s", error.message)
        return None
    if not width:
        return None
    tokens = Tokens(tokenizer.encode, min(len(tokenizer), vocabulary), min(said.longest or window, window))
    return Embedder(Decoder(network, width, said.pooling or pooling), tokens)


def _warm_up(network: Any, length: int) -> int:
    """Run a prompt of `length` and one more token, so that no client waits for kernels to be built or memory to be
    had. The width of the logits."""
    cache = make_prompt_cache(network)
    if length > 1:
        # Without the table of all tokens where it is apart: the logits of a whole prompt are 100 MB.
        body = getattr(network, "model", None) or network
        body(mx.zeros((1, length), mx.int32), cache=cache)
        mx.eval([layer.state for layer in cache])
    logits = network(mx.zeros((1, 1), mx.int32), cache=cache)
    mx.eval(logits)
    return int(logits.shape[-1])


def _read(folder: Path, name: str) -> tuple[Any, dict[str, Any]]:
    """The model with its weights not evaluated yet, and its configuration as mlx-lm completed it."""
    try:
        if any("embed_tokens.weight" in safetensors.names(file) for file in files.weights(folder, name)):
            # Saved without what makes logits, as models for embeddings are.
            tied = {"tie_word_embeddings": True}
            return load_model(folder, lazy=True, model_config=tied, get_model_classes=_headless)
        return load_model(folder, lazy=True)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OSError) as error:
        # Whatever a wrong configuration meets inside a model class: none of it tells a person more than its first line.
        raise ModelNotConfigured(f"mlx-lm cannot load {name}: {_first_line(error, folder)}") from error


def _fix_angles(network: Any, window: int) -> None:
    """Dynamic scaling changes nothing for as many positions as the model was made for, and no conversation has more.
    mlx-lm's module for it cannot take rows that are at different positions."""
    for module in network.modules():
        rope = module.get("rope")
        if isinstance(rope, DynamicNTKScalingRoPE) and window <= rope.max_position_embeddings:
            module.rope = RoPE(rope.dims, rope.traditional, rope.base)


def _headless(config: dict[str, Any]) -> tuple[Any, Any]:
    """mlx-lm's classes, for weights whose names lack the part that all but the head have."""
    made: Any = _get_classes(config)

    def sanitize(network: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        named = {f"model.{key}": array for key, array in weights.items()}
        return made[0].sanitize(network, named) if hasattr(made[0], "sanitize") else named

    return type(made[0].__name__, (made[0],), {"sanitize": sanitize}), made[1]


def _read_tokenizer(folder: Path, config: dict[str, Any], name: str) -> TokenizerWrapper:
    try:
        return load_tokenizer(
            folder,
            {"trust_remote_code": False},
            eos_token_ids=config.get("eos_token_id"),
            defaults=_tokenizer_defaults(folder),
        )
    except StrictDataclassError as error:
        # transformers reads the configuration too, to choose a class, and is stricter about it than mlx-lm.
        reason = _first_line(error.__cause__ or error, folder)
        raise ModelNotConfigured(f"the tokenizer of {name} cannot be loaded: {reason}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OSError, ImportError) as error:
        raise ModelNotConfigured(f"the tokenizer of {name} cannot be loaded: {_first_line(error, folder)}") from error


def _first_line(error: BaseException, folder: Path) -> str:
    """What an error says first, without the place where it happened."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].replace(str(folder), folder.name)[:200]


def _dtype(network: Any, config: dict[str, Any]) -> str:
    """ "4-bit" for quantized weights, else the type of most of them."""
    quantization = config.get("quantization")
    if isinstance(quantization, dict) and isinstance(quantization.get("bits"), int):
        return f"{quantization['bits']}-bit"
    sizes: dict[str, int] = {}
    for array in _arrays(network):
        sizes[str(array.dtype)] = sizes.get(str(array.dtype), 0) + array.size
    return max(sizes, key=lambda each: sizes[each]).removeprefix("mlx.core.") if sizes else ""


def _arrays(network: Any) -> list[mx.array]:
    from mlx.utils import tree_flatten

    pairs: Any = tree_flatten(network.parameters())
    return [array for _, array in pairs]
