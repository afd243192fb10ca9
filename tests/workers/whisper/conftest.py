"""Models for the tests of the two formulations: random ones of any shape, and the starters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SHAPES: dict[str, dict[str, int]] = {
    # Heads that two streams cannot halve, vocabularies that need padding, encoder and decoder of different depth.
    "tiny.en": {"n_mels": 80, "width": 96, "heads": 3, "encoder": 3, "decoder": 2, "n_vocab": 864, "n_audio_ctx": 300},
    "base": {"n_mels": 80, "width": 128, "heads": 4, "encoder": 2, "decoder": 3, "n_vocab": 865, "n_audio_ctx": 301},
    "turbo": {"n_mels": 128, "width": 160, "heads": 5, "encoder": 4, "decoder": 1, "n_vocab": 866, "n_audio_ctx": 256},
    # Every width is large-v3-turbo's; the encoder has 2 layers of 32, and few tokens fit, for the sake of time.
    "large-v3-turbo": {
        "n_mels": 128,
        "width": 1280,
        "heads": 20,
        "encoder": 2,
        "decoder": 4,
        "n_vocab": 51866,
        "n_audio_ctx": 1500,
        "n_text_ctx": 48,
    },
    "odd": {"n_mels": 8, "width": 40, "heads": 5, "encoder": 1, "decoder": 2, "n_vocab": 77, "n_audio_ctx": 50},
}

MakeModule = Callable[..., Any]


def _value(name: str, shape: tuple[int, ...], scale: float) -> Any:
    """Random weights with affine norms and biases that matter: `scale` stretches the products."""
    import mlx.core as mx

    noise = mx.random.normal(shape)
    if "ln" in name:
        return 0.1 * noise + (1 if name.endswith("weight") else 0)
    if name.endswith("bias"):
        return 0.1 * noise
    if "embedding" in name:
        return 0.3 * noise
    return noise * (scale / float(np.prod(shape[1:])) ** 0.5)


@pytest.fixture
def make_module(fast_blas: Any) -> MakeModule:
    """shape name, scale, seed -> mlx_whisper's Whisper with random float32 weights, always the same ones."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_whisper.whisper import ModelDimensions, Whisper

    def make(shape: str, scale: float = 1.0, seed: int = 0) -> Any:
        s = SHAPES[shape]
        dims = ModelDimensions(
            n_mels=s["n_mels"],
            n_audio_ctx=s["n_audio_ctx"],
            n_audio_state=s["width"],
            n_audio_head=s["heads"],
            n_audio_layer=s["encoder"],
            n_vocab=s["n_vocab"],
            n_text_ctx=s.get("n_text_ctx", 448),
            n_text_state=s["width"],
            n_text_head=s["heads"],
            n_text_layer=s["decoder"],
        )
        mx.random.seed(seed)
        module = Whisper(dims, mx.float32)
        weights = [
            (name, _value(name, value.shape, scale))
            for name, value in tree_flatten(module.parameters())
            if name != "alignment_heads"
        ]
        module.load_weights(weights, strict=False)
        mx.eval(module.parameters())
        return module

    return make


@pytest.fixture
def build(kernel_dir: Path) -> Callable[..., Any]:
    """kind, module, streams -> one formulation of a model; the tuned one with its compiled decoder."""

    def make(kind: str, module: Any, streams: int = 2) -> Any:
        from workers.whisper.cpu.model import cpu_model
        from workers.whisper.plain import plain_model

        return plain_model(module) if kind == "plain" else cpu_model(module, streams, kernel_dir)

    return make


@pytest.fixture
def make_mel() -> Callable[..., np.ndarray]:
    """module, seed -> (2 n_audio_ctx, n_mels) float32 as a log-mel spectrogram's range has it."""

    def make(module: Any, seed: int = 0) -> np.ndarray:
        shape = (2 * module.dims.n_audio_ctx, module.dims.n_mels)
        return np.random.default_rng(seed).uniform(-1, 1.5, shape).astype(np.float32)

    return make


@pytest.fixture
def load_starter(fast_blas: Any, model_data_dir: Any) -> Callable[[str], Any]:
    """ "base" or "tiny.en" -> a freshly loaded float32 module with real weights."""

    def load(name: str) -> Any:
        import mlx.core as mx

        from workers.whisper.load import load as load_model

        return load_model(
            f"whisper-{name}", data_dir=model_data_dir, offline=True, report=lambda _: None, dtype=mx.float32
        ).whisper

    return load


@pytest.fixture
def load_model(load_starter: Callable[[str], Any], kernel_dir: Path) -> Callable[[str], Any]:
    """ "base" or "tiny.en" -> the formulation that the speech worker would choose here, with real weights."""

    def load(name: str) -> Any:
        from workers.whisper.model import choose

        return choose(load_starter(name), folder=kernel_dir)

    return load
