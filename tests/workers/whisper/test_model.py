"""The plain formulation is mlx_whisper's model; the tuned one is the plain one; company changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TOKENS = [70, 3, 14, 15, 9, 26]
SHAPES = ["tiny.en", "base", "turbo", "odd"]
KINDS = ["plain", "cpu"]

Build = Callable[..., Any]


def reference(module: Any, mel: np.ndarray, tokens: list[int]) -> tuple[np.ndarray, list[Any]]:
    """mlx_whisper's own logits (tokens, vocabulary) and cross scores by layer."""
    import mlx.core as mx

    logits, scores = module.forward_with_cross_qk(mx.array(mel)[None], mx.array(tokens)[None])
    return np.array(logits[0]), [np.array(layer[0]) for layer in scores]


def assert_near(actual: np.ndarray, expected: np.ndarray, tolerance: float = 1e-3) -> None:
    """Within `tolerance` of the expected values' own size."""
    assert actual.shape == expected.shape
    assert float(np.abs(actual - expected).max()) <= tolerance * max(1.0, float(np.abs(expected).max()))


def encode(model: Any, mel: np.ndarray, context: int | None = None) -> Any:
    return model.encode([mel], [context or model.dims.n_audio_ctx])[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_prefill_and_steps_give_mlx_whispers_logits(
    build: Build, kind: str, shape: str, make_module: Callable[..., Any], make_mel: Callable[..., np.ndarray]
) -> None:
    module = make_module(shape)
    mel = make_mel(module)
    expected, _ = reference(module, mel, TOKENS)
    model = build(kind, module)

    rows, logits = model.prefill(encode(model, mel), TOKENS[:3], [0, -1])
    assert logits.dtype == np.float32
    assert_near(logits, expected[[0, 2]])
    for position in (3, 4, 5):
        assert rows.position == position
        assert_near(
            model.step([rows], [np.array(TOKENS[position : position + 1])])[0], expected[position : position + 1]
        )


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_any_number_of_threads_gives_the_same(
    build: Build, threads: int, make_module: Callable[..., Any], make_mel: Callable[..., np.ndarray]
) -> None:
    module = make_module("tiny.en")
    mel = make_mel(module)
    expected, _ = reference(module, mel, TOKENS)
    model = build("cpu", module, threads)
    assert_near(model.prefill(encode(model, mel), TOKENS, range(len(TOKENS)))[1], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_align_gives_mlx_whispers_scores_of_the_alignment_heads(
    build: Build, kind: str, shape: str, make_module: Callable[..., Any], make_mel: Callable[..., np.ndarray]
) -> None:
    module = make_module(shape)
    mel = make_mel(module)
    module.set_alignment_heads(np.array([[0, 2], [0, 0]]))
    logits, scores = reference(module, mel, TOKENS)
    model = build(kind, module)
    assert model.alignment_heads == [(0, 2), (0, 0)]
    weights, own_logits = model.align(encode(model, mel), TOKENS)
    assert_near(weights, np.stack([scores[0][2], scores[0][0]]))
    assert_near(own_logits, logits)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_company(
    build: Build, kind: str, make_module: Callable[..., Any], make_mel: Callable[..., np.ndarray]
) -> None:
    """Groups with other windows, contexts, positions and widths come, go and change places between steps."""
    module = make_module("base")
    mels = [make_mel(module, seed) for seed in range(3)]
    contexts = [module.dims.n_audio_ctx, 120, 120]
    prompts = [TOKENS[:2], TOKENS[:5], TOKENS[:4]]
    model = build(kind, module)
    windows = model.encode(mels, contexts)

    alone = []
    for window, prompt in zip(windows, prompts, strict=True):
        rows, first = model.prefill(window, prompt, [-1])
        rows.select([0, 0])
        alone.append([first, *(model.step([rows], [np.array([t, t + 1])])[0] for t in (5, 6, 7))])

    together = model.prefill_many([(w, p, [-1]) for w, p in zip(windows, prompts, strict=True)])
    groups = [rows for rows, _ in together]
    for (_, first), expected in zip(together, alone, strict=True):
        assert_near(first, expected[0])
    for rows in groups:
        rows.select([0, 0])
    counts = [0, 0, 0]
    for company in ([0, 1, 2], [2, 0], [1], [1, 0, 2]):
        tokens = [np.array([5 + counts[i], 6 + counts[i]]) for i in company]
        for i, logits in zip(company, model.step([groups[i] for i in company], tokens), strict=True):
            counts[i] += 1
            assert_near(logits, alone[i][counts[i]])
    assert counts == [3, 3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_select_doubles_drops_and_swaps_rows(
    build: Build, kind: str, make_module: Callable[..., Any], make_mel: Callable[..., np.ndarray]
) -> None:
    module = make_module("base")
    mel = make_mel(module)
    beams = [[70, 3, 1, 8], [70, 3, 2, 9], [70, 3, 1, 5]]
    expected = [reference(module, mel, beam)[0][-1] for beam in beams]
    model = build(kind, module)

    rows, _ = model.prefill(encode(model, mel), [70, 3], [-1])
    rows.select([0, 0])
    model.step([rows], [np.array([2, 1])])
    rows.select([1, 0, 1])
    assert rows.n == 3
    assert_near(model.step([rows], [np.array([8, 9, 5])])[0], np.stack(expected))
    rows.select([2])
    assert (rows.n, rows.position) == (1, 4)
    expected_last = reference(module, mel, [*beams[2], 6])[0][-1:] if kind == "plain" else None
    last = model.step([rows], [np.array([6])])[0]
    if expected_last is not None:  # the tuned model has taken the module's weights
        assert_near(last, expected_last)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_grow_to_the_last_position(
    build: Build, kind: str, make_module: Callable[..., Any], make_mel: Callable[..., np.ndarray]
) -> None:
    module = make_module("odd")
    mel = make_mel(module)
    tokens = np.random.default_rng(1).integers(0, 77, 448).tolist()
    expected, _ = reference(module, mel, tokens)
    model = build(kind, module)
    rows, logits = model.prefill(encode(model, mel), tokens[:300], [-1])
    assert_near(logits, expected[299:300])
    for position in range(300, 448):
        logits = model.step([rows], [np.array(tokens[position : position + 1])])[0]
    assert_near(logits, expected[447:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("context", [1, 3, 40])
def test_a_reduced_context_is_a_shorter_window(
    build: Build, kind: str, context: int, make_module: Callable[..., Any], make_mel: Callable[..., np.ndarray]
) -> None:
    """mlx_whisper on the shortened mel, its positions truncated, is the reference."""
    module = make_module("odd")
    mel = make_mel(module)
    full = module.encoder._positional_embedding
    module.encoder._positional_embedding = full[:context]
    expected, _ = reference(module, mel[: 2 * context], TOKENS)
    module.encoder._positional_embedding = full
    model = build(kind, module)
    window = encode(model, mel, context)
    assert window.context == context
    assert_near(model.prefill(window, TOKENS, range(len(TOKENS)))[1], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_hundreds_do_not_overflow_the_encoder(
    build: Build, kind: str, make_module: Callable[..., Any], make_mel: Callable[..., np.ndarray]
) -> None:
    module = make_module("base")
    for block in module.encoder.blocks[:1]:
        block.attn.query.weight = block.attn.query.weight * 40
        block.attn.key.weight = block.attn.key.weight * 10
    mel = make_mel(module)
    expected, _ = reference(module, mel, TOKENS)
    model = build(kind, module)
    assert_near(model.prefill(encode(model, mel), TOKENS, range(len(TOKENS)))[1], expected)


def test_cross_scores_of_hundreds_do_not_overflow(
    build: Build, make_module: Callable[..., Any], make_mel: Callable[..., np.ndarray]
) -> None:
    module = make_module("base")
    for block in module.decoder.blocks:
        block.cross_attn.query.weight = block.cross_attn.query.weight * 100
    mel = make_mel(module)
    expected, scores = reference(module, mel, TOKENS)
    assert max(float(layer.max()) for layer in scores) > 200
    model = build("cpu", module)
    assert_near(model.prefill(encode(model, mel), TOKENS, range(len(TOKENS)))[1], expected, 5e-3)


def test_the_tuned_model_is_chosen_for_plain_float32_only(make_module: Callable[..., Any], kernel_dir: Path) -> None:
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize

    from workers.whisper.cpu.encoder import NativeEncoder
    from workers.whisper.model import choose
    from workers.whisper.plain import PlainEncoder

    assert isinstance(choose(make_module("base"), folder=kernel_dir).encoder, NativeEncoder)
    half = make_module("base")
    half.set_dtype(mx.float16)
    assert isinstance(choose(half, folder=kernel_dir).encoder, PlainEncoder)
    quantized = make_module("base")
    quantize(quantized, group_size=32, bits=8)
    assert isinstance(choose(quantized, folder=kernel_dir).encoder, PlainEncoder)


@pytest.mark.parametrize("how", ["float16", "quantized"])
def test_the_plain_model_runs_other_weights(
    build: Build, how: str, make_module: Callable[..., Any], make_mel: Callable[..., np.ndarray]
) -> None:
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize

    module = make_module("base")
    mel = make_mel(module)
    exact, _ = reference(module, mel, TOKENS)
    if how == "float16":
        module.set_dtype(mx.float16)
        module.encoder._positional_embedding = module.encoder._positional_embedding.astype(mx.float16)
    else:
        quantize(module, group_size=32, bits=8)
    model = build("plain", module)
    window = encode(model, mel)
    logits = model.prefill(window, TOKENS, range(len(TOKENS)))[1]
    assert logits.dtype == np.float32
    assert_near(logits, exact, 0.05)
    assert model.align(window, TOKENS)[0].dtype == np.float32


@pytest.mark.model
@pytest.mark.parametrize("name", ["base", "tiny.en"])
def test_real_weights_give_mlx_whispers_logits(build: Build, name: str, load_starter: Callable[[str], Any]) -> None:
    import mlx.core as mx

    module = load_starter(name)
    assert module.decoder.token_embedding.weight.dtype == mx.float32
    mel = np.random.default_rng(0).uniform(-0.5, 1, (3000, 80)).astype(np.float32)
    tokens = [50257, 50362, 440, 1002, 11, 257, 300]
    expected, scores = reference(module, mel, tokens)
    heads = [tuple(head) for head in module.alignment_heads.tolist()]
    for kind in KINDS:
        model = build(kind, module)
        window = encode(model, mel)
        rows, logits = model.prefill(window, tokens[:4], [0, 3])
        assert_near(logits, expected[[0, 3]])
        for position in (4, 5, 6):
            assert_near(model.step([rows], [np.array([tokens[position]])])[0], expected[position : position + 1])
        weights, _ = model.align(window, tokens)
        assert_near(weights, np.stack([scores[layer][head] for layer, head in heads]))
