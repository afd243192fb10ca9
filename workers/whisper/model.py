"""The Whisper model as the engine sees it, and the two halves of which each formulation consists.

Knows arrays, positions and windows; nothing of text, rules or time. The formulations are in plain.py and cpu/.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import mlx.core as mx
import numpy as np
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear


class Encoded(Protocol):
    """One encoded window: its keys and values for the decoder's cross attention."""

    @property
    def context(self) -> int:
        """Encoder frames, 20 ms each."""
        ...


class Rows(Protocol):
    """Sequences over one window that stand at the same position: the beams or samples of one attempt at it."""

    @property
    def n(self) -> int: ...

    @property
    def position(self) -> int:
        """Tokens so far, the same for every row."""
        ...

    def select(self, indices: Sequence[int]) -> None:
        """Row i becomes what row indices[i] was; rows may be doubled and dropped, so n becomes len(indices)."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens of every row."""
        ...


E = TypeVar("E", bound=Encoded)
R = TypeVar("R", bound=Rows)


class WhisperModel(Protocol[E, R]):
    """What the engine asks of a model. Results for a row do not depend on what else is in the call (1e-3 in logits).

    Everything runs in the thread that made the model. Encoded and Rows free their memory when they are dropped.
    """

    @property
    def dims(self) -> Any:
        """mlx_whisper.whisper.ModelDimensions"""
        ...

    @property
    def alignment_heads(self) -> list[tuple[int, int]]:
        """(layer, head), the order of align's first axis."""
        ...

    def encode(self, mels: Sequence[Any], contexts: Sequence[int]) -> list[E]:
        """Each mel (>= 2 context, n_mels), numpy or mlx. A context below n_audio_ctx drops the frames behind it."""
        ...

    def prefill(self, encoded: E, tokens: Sequence[int], at: Sequence[int]) -> tuple[R, np.ndarray]:
        """One row that has read `tokens`; logits (len(at), vocabulary) float32 behind the tokens `at` (-1: last)."""
        ...

    def prefill_many(self, starts: Sequence[tuple[E, Sequence[int], Sequence[int]]]) -> list[tuple[R, np.ndarray]]:
        """Several prefills in one pass, (encoded, tokens, at) each; eight short ones cost little more than two."""
        ...

    def step(self, rows: Sequence[R], tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Tokens (n,) or (n, length) for the rows of every group: logits, a row of them for each token. Waits once.

        Groups may differ in window, context and position, and come in any company from one step to the next.
        """
        ...

    def align(self, encoded: E, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The alignment heads' cross attention **before** its softmax, (heads, tokens, frames) float32, and logits
        (tokens, vocabulary): what mlx_whisper's timing.py takes."""
        ...


def choose(module: Any, threads: int | None = None, *, folder: Path | None = None) -> WhisperModel[Any, Any]:
    """The fitting formulation for a loaded mlx_whisper Whisper: the tuned one for float32 weights on the CPU.

    The module is consumed. threads: how many for the tuned one; None is one per core. folder: where what is compiled
    for it is kept; None goes without.
    """
    if folder is not None and tuned(module):
        from workers.whisper.cpu.model import cpu_model

        return cpu_model(module, threads, folder)
    from workers.whisper.plain import plain_model

    return plain_model(module)


def tuned(module: Any) -> bool:
    """Whether cpu.py can run this module: plain float32 weights, computed on the CPU."""
    linear = type(module.decoder.token_embedding) is Embedding and type(module.encoder.blocks[0].mlp1) is Linear
    return linear and dtype_of(module) == mx.float32 and mx.default_device().type == mx.DeviceType.cpu


def dtype_of(module: Any) -> mx.Dtype:
    """The type the model computes in: convolutions are never quantized."""
    dtype: mx.Dtype = module.encoder.conv1.weight.dtype
    return dtype


class Encoder(Protocol):
    """The first half of a model."""

    def __call__(self, mel: mx.array, context: int) -> mx.array:
        """mel (>= 2 context, n_mels) to features (context, d)."""
        ...


class Decoder(Protocol[E, R]):
    """The second half."""

    def cross(self, features: mx.array) -> E:
        """The encoder's (frames, d) to a window's keys and values; waits for them."""
        ...

    def new_rows(self, encoded: E, length: int) -> R:
        """One row without tokens, soon with `length`."""
        ...

    def forward(
        self, groups: Sequence[R], tokens: Sequence[np.ndarray], wanted: Sequence[int] | None = None
    ) -> np.ndarray:
        """Append tokens[i] (rows, length) to groups[i]; logits (tokens, vocabulary) float32 of the wanted tokens.

        wanted: indices into all tokens, group by group, row by row; None is all of them.
        """
        ...

    def align(self, rows: R, tokens: Sequence[int], heads: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """Append tokens to the one row; cross scores (heads, tokens, frames) of (layer, head), and all logits."""
        ...


class TwoHalves(Generic[E, R]):
    """WhisperModel of an encoder and a decoder."""

    def __init__(self, dims: Any, alignment_heads: Sequence[Any], encoder: Encoder, decoder: Decoder[E, R]) -> None:
        self.dims = dims
        self.alignment_heads: list[tuple[int, int]] = [(layer, head) for layer, head in alignment_heads]
        self.encoder = encoder
        self.decoder = decoder

    def encode(self, mels: Sequence[Any], contexts: Sequence[int]) -> list[E]:
        """One window after another: each keeps the processor busy, and two windows' scores would not fit its cache."""
        return [
            self.decoder.cross(self.encoder(mx.array(mel), context))
            for mel, context in zip(mels, contexts, strict=True)
        ]

    def prefill(self, encoded: E, tokens: Sequence[int], at: Sequence[int]) -> tuple[R, np.ndarray]:
        return self.prefill_many([(encoded, tokens, at)])[0]

    def prefill_many(self, starts: Sequence[tuple[E, Sequence[int], Sequence[int]]]) -> list[tuple[R, np.ndarray]]:
        groups = [self.decoder.new_rows(encoded, len(tokens)) for encoded, tokens, _ in starts]
        ids = [np.asarray(tokens)[None] for _, tokens, _ in starts]
        logits = self.decoder.forward(groups, ids, wanted_tokens(starts))
        return list(zip(groups, np.split(logits, np.cumsum([len(at) for _, _, at in starts])[:-1]), strict=True))

    def step(self, rows: Sequence[R], tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
        logits = self.decoder.forward(
            rows, [np.reshape(ids, (group.n, -1)) for group, ids in zip(rows, tokens, strict=True)]
        )
        return np.split(logits, np.cumsum([np.size(ids) for ids in tokens])[:-1])

    def align(self, encoded: E, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return self.decoder.align(self.decoder.new_rows(encoded, len(tokens)), tokens, self.alignment_heads)


def wanted_tokens(starts: Sequence[tuple[Any, Sequence[int], Sequence[int]]]) -> list[int]:
    """The `at` of several prefills, counted through the tokens of all of them."""
    wanted, before = [], 0
    for _, tokens, at in starts:
        wanted += [before + position % len(tokens) for position in at]
        before += len(tokens)
    return wanted
