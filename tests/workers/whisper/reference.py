"""mlx_whisper.transcribe itself, running on our models: what differs then is a rule, never a logit.

Brings mlx, so tests import it themselves, once their BLAS is there.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_whisper.decoding import decode, detect_language
from mlx_whisper.transcribe import ModelHolder
from mlx_whisper.transcribe import transcribe as run_reference


class Borrowed:
    """A model of ours in the shape that mlx-whisper expects of its Whisper."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.dims = model.dims
        self.alignment_heads = mx.array(model.alignment_heads)
        self._windows: list[Any] = []
        self._last: tuple[np.ndarray, mx.array] | None = None

    is_multilingual = property(lambda self: self.dims.n_vocab >= 51865)
    num_languages = property(lambda self: self.dims.n_vocab - 51765 - int(self.is_multilingual))

    def encoder(self, mel: mx.array) -> mx.array:
        """A stand-in whose first number tells the window; a repeated window is not encoded again."""
        window = np.array(mel[0])
        if self._last is None or not np.array_equal(self._last[0], window):
            self._windows.append(self._model.encode([window], [self.dims.n_audio_ctx])[0])
            features = np.full((1, self.dims.n_audio_ctx, self.dims.n_audio_state), len(self._windows) - 1, np.float32)
            self._last = (window, mx.array(features))
        return self._last[1]

    def logits(self, tokens: mx.array, features: mx.array) -> mx.array:
        return self.decoder(tokens, features)[0]

    def decoder(self, tokens: mx.array, features: mx.array, kv_cache: Any = None) -> tuple[mx.array, Any, None]:
        row = np.array(tokens)[0]
        if kv_cache is None:
            window = self._windows[int(features[0, 0, 0].item())]
            kv_cache, logits = self._model.prefill(window, row.tolist(), range(len(row)))
        elif kv_cache.position >= self.dims.n_text_ctx:
            logits = np.zeros((1, self.dims.n_vocab), np.float32)  # The reference computes it and throws it away.
        else:
            logits = self._model.step([kv_cache], [row])[0]
        return mx.array(logits)[None], kv_cache, None

    def forward_with_cross_qk(self, mel: mx.array, tokens: mx.array) -> tuple[mx.array, Any]:
        window = self._windows[int(self.encoder(mel)[0, 0, 0].item())]
        scores, logits = self._model.align(window, np.array(tokens)[0].tolist())
        layers: dict[int, Any] = {}
        for (layer, head), line in zip(self._model.alignment_heads, scores, strict=True):
            layers.setdefault(layer, {})[(0, head)] = mx.array(line)
        return mx.array(logits)[None], layers

    decode = decode
    detect_language = detect_language


def transcribe(model: Any, audio: np.ndarray, **options: Any) -> dict[str, Any]:
    """audio: (samples,) float32. -> what mlx_whisper.transcribe returns."""
    ModelHolder.model, ModelHolder.model_path = Borrowed(model), "borrowed"  # type: ignore[assignment]
    try:
        return run_reference(audio, path_or_hf_repo="borrowed", fp16=False, **options)  # type: ignore[no-any-return]
    finally:
        ModelHolder.model = ModelHolder.model_path = None
