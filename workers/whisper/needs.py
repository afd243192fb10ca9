"""How decoding asks for a model's work: needs go out of a generator, answers come back into it.

Knows no MLX: the engine answers with what `model.WhisperModel` gives.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # That module brings MLX, which decoding itself has no use for.
    from workers.whisper.model import Encoded, Rows

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Dims(Protocol):
    """The part of mlx_whisper's ModelDimensions that decoding reads."""

    n_mels: int
    n_audio_ctx: int
    n_vocab: int
    n_text_ctx: int


@dataclass(frozen=True)
class Encode:
    """Answered by an Encoded."""

    mel: Floats
    context: int


@dataclass(frozen=True)
class Prefill:
    """Answered by (Rows, logits)."""

    encoded: Encoded
    tokens: tuple[int, ...]
    at: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """Answered by logits, a row of them for each token."""

    rows: Rows
    tokens: Ints
    """(n,), or (n, length) where a row is ahead of its choices."""


@dataclass(frozen=True)
class Align:
    """Answered by (scores, logits), as WhisperModel.align has them."""

    encoded: Encoded
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """Is there speech between these seconds of the job's audio? Answered by a bool, some time later."""

    start: float
    end: float


@dataclass(frozen=True)
class Pause:
    """Let the others have a turn. Answered by None."""


Need = Encode | Prefill | Step | Align | Ask | Pause

T = TypeVar("T")
Steps = Generator[Need, Any, T]
"""Work that stops at each need, goes on with the answer, and returns a T. Closing it forgets the work."""
