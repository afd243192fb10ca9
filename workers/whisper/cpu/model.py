"""The Whisper model tuned for MLX's CPU backend: float32, a stream for each core, one BLAS thread each.

Ties the encoder and the decoder together behind model.WhisperModel. Everything runs in the thread that made it.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from workers.heap import keep_memory
from workers.whisper.cpu.decoder import CpuEncoded, CpuRows, Decoder
from workers.whisper.cpu.encoder import Encoder
from workers.whisper.cpu.kernels import Kernels
from workers.whisper.cpu.streams import MAX_STREAMS, cores, new_streams
from workers.whisper.model import wanted_tokens


class CpuModel:
    """WhisperModel over the tuned formulation.

    Takes the arrays out of the module it is given, which is of no use afterwards: two copies of the weights would
    be half the worker's memory.
    """

    def __init__(self, module: Any, streams: int | None = None) -> None:
        self.dims = module.dims
        self.kernels = Kernels()
        self.alignment_heads: list[tuple[int, int]] = [(layer, head) for layer, head in module.alignment_heads.tolist()]
        shared = new_streams(min(streams or cores(), MAX_STREAMS))
        self.decoder = Decoder(module, shared, self.kernels)
        self.encoder = Encoder(module.encoder, module.dims.n_audio_head, shared, self.kernels)
        keep_memory()

    def encode(self, mels: Sequence[Any], contexts: Sequence[int]) -> list[CpuEncoded]:
        """One window after another: each keeps all streams busy, and two windows' scores would not fit the cache."""
        windows = []
        for mel, context in zip(mels, contexts, strict=True):
            encoded = self.decoder.cross(self.encoder(mx.array(mel), context), context)
            mx.eval(encoded.keys, encoded.values)
            windows.append(encoded)
        return windows

    def prefill(self, encoded: CpuEncoded, tokens: Sequence[int], at: Sequence[int]) -> tuple[CpuRows, np.ndarray]:
        return self.prefill_many([(encoded, tokens, at)])[0]

    def prefill_many(
        self, starts: Sequence[tuple[CpuEncoded, Sequence[int], Sequence[int]]]
    ) -> list[tuple[CpuRows, np.ndarray]]:
        groups = [self.decoder.new_rows(encoded, len(tokens)) for encoded, tokens, _ in starts]
        ids = [np.asarray(tokens)[None] for _, tokens, _ in starts]
        logits = self.decoder.forward(groups, ids, wanted_tokens(starts))
        return list(zip(groups, np.split(logits, np.cumsum([len(at) for _, _, at in starts])[:-1]), strict=True))

    def step(self, rows: Sequence[CpuRows], tokens: Sequence[np.ndarray]) -> list[np.ndarray]:
        logits = self.decoder.forward(
            rows, [np.reshape(ids, (group.n, -1)) for group, ids in zip(rows, tokens, strict=True)]
        )
        return np.split(logits, np.cumsum([np.size(ids) for ids in tokens])[:-1])

    def align(self, encoded: CpuEncoded, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        scores: dict[tuple[int, int], mx.array] = {}
        rows = self.decoder.new_rows(encoded, len(tokens))
        logits = self.decoder.forward([rows], [np.asarray(tokens)[None]], scores=scores)
        chosen = [scores[head] for head in self.alignment_heads]
        mx.eval(chosen)
        return np.stack([np.array(s, copy=False) for s in chosen]), logits
