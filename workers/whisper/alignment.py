"""The cross-attention heads that follow the audio: (layer, head) for each published Whisper.

Knows names and shapes; knows no weights. Source: openai/whisper `_ALIGNMENT_HEADS`, decoded.
"""

from __future__ import annotations

Heads = tuple[tuple[int, int], ...]


def _heads(text: str) -> Heads:
    """ "3:1 4:2,3" is ((3, 1), (4, 2), (4, 3))."""
    return tuple(
        (int(layer), int(head))
        for layer, heads in (entry.split(":") for entry in text.split())
        for head in heads.split(",")
    )


ALIGNMENT_HEADS: dict[str, Heads] = {
    "tiny.en": _heads("1:0 2:0,5 3:0,1,2,3,4"),
    "tiny": _heads("2:2 3:0,2,3,4,5"),
    "base.en": _heads("3:3 4:7 5:1,5,7"),
    "base": _heads("3:1 4:2,3,7 5:1,2,4,6"),
    "small.en": _heads("6:6 7:0,3,8 8:2,5,7 9:0,4,8,10 10:0,1,2,3,6,11 11:2,4"),
    "small": _heads("5:3,9 8:0,4,7,8 9:0,7,9 10:5"),
    "medium.en": _heads("11:4 14:1,12,14 15:4 16:0,4,9 17:12,14 18:7,10,15 20:0,3,9,14 21:12"),
    "medium": _heads("13:15 15:4,15 16:1 20:0 23:4"),
    "large-v1": _heads("9:19 11:2,4,17 22:7,11,17 23:2,15"),
    "large-v2": _heads(
        "10:12 13:17 16:11,12,13 17:15,16 18:4,11,19 19:11 21:2,3 22:3,9,12 23:5,7,13 25:5 26:1,12 27:15"
    ),
    "large-v3": _heads("7:0 10:17 12:18 13:12 16:1 17:14 19:11 21:4 24:1 25:6"),
    "large-v3-turbo": _heads("2:4,11 3:3,6,11,14"),
}

_SIZES = {(4, 6): "tiny", (6, 8): "base", (12, 12): "small", (24, 16): "medium"}
"""By decoder layers and heads."""


def for_shape(
    *, layers: int, heads: int, encoder_layers: int, mels: int, multilingual: bool, name: str
) -> Heads | None:
    """The published heads of a model with so many decoder layers and heads; None where no published model has them.

    Only the first two large models share a shape; `name` tells them apart, and v2 is what is meant where it does not.
    """
    if size := _SIZES.get((layers, heads)):
        return ALIGNMENT_HEADS[size if multilingual else f"{size}.en"] if encoder_layers == layers else None
    if (layers, heads, encoder_layers) == (4, 20, 32):
        return ALIGNMENT_HEADS["large-v3-turbo"]
    if (layers, heads, encoder_layers) == (32, 20, 32):
        if mels == 128:
            return ALIGNMENT_HEADS["large-v3"]
        return ALIGNMENT_HEADS["large-v1" if "v1" in name.lower() else "large-v2"]
    return None
