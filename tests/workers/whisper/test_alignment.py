"""The table of alignment heads, against the published counts and shapes."""

from __future__ import annotations

import pytest

from workers.whisper.alignment import ALIGNMENT_HEADS, for_shape

SHAPES = {"tiny": (4, 6), "base": (6, 8), "small": (12, 12), "medium": (24, 16)}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("tiny.en", 8),
        ("tiny", 6),
        ("base.en", 5),
        ("base", 8),
        ("small.en", 19),
        ("small", 10),
        ("medium.en", 18),
        ("medium", 6),
        ("large-v1", 9),
        ("large-v2", 23),
        ("large-v3", 10),
        ("large-v3-turbo", 6),
    ],
)
def test_every_published_model_has_its_heads(name: str, count: int) -> None:
    layers, heads = (4, 20) if name.endswith("turbo") else SHAPES.get(name.removesuffix(".en"), (32, 20))
    assert len(ALIGNMENT_HEADS[name]) == count
    assert list(ALIGNMENT_HEADS[name]) == sorted(set(ALIGNMENT_HEADS[name]))
    assert all(layer < layers and head < heads for layer, head in ALIGNMENT_HEADS[name])


def test_some_heads_in_full() -> None:
    assert ALIGNMENT_HEADS["base.en"] == ((3, 3), (4, 7), (5, 1), (5, 5), (5, 7))
    assert ALIGNMENT_HEADS["large-v3-turbo"] == ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14))


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((4, 6, 4, 80, True, "x"), "tiny"),
        ((4, 6, 4, 80, False, "x"), "tiny.en"),
        ((24, 16, 24, 80, False, "x"), "medium.en"),
        ((32, 20, 32, 80, True, "openai/whisper-large"), "large-v2"),
        ((32, 20, 32, 80, True, "openai/whisper-large-v1"), "large-v1"),
        ((32, 20, 32, 128, True, "x"), "large-v3"),
        ((4, 20, 32, 128, True, "x"), "large-v3-turbo"),
        ((2, 20, 32, 128, True, "distil-whisper/distil-large-v3"), None),
        ((4, 12, 12, 80, False, "distil-whisper/distil-small.en"), None),
    ],
)
def test_a_shape_names_its_model(shape: tuple[int, int, int, int, bool, str], name: str | None) -> None:
    layers, heads, encoder_layers, mels, multilingual, given = shape
    found = for_shape(
        layers=layers, heads=heads, encoder_layers=encoder_layers, mels=mels, multilingual=multilingual, name=given
    )
    assert found == (ALIGNMENT_HEADS[name] if name else None)
