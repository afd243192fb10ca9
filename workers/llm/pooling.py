"""How the vectors of a text's tokens become the text's own, as a model's folder says in sentence-transformers' files.

Knows modules.json and what it names; runs no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from protocol.errors import ModelNotConfigured
from workers.configuration import read_object

Pooling = Literal["mean", "cls", "last"]
"""The mean of all tokens' vectors, the first token's or the last one's."""

MODULES = "modules.json"
TRANSFORMER = "sentence_bert_config.json"

_KIND = "embedding model"
_FILES = re.compile(r"modules\.json|sentence_bert_config\.json|\d+_Pooling/config\.json")

_MODES: Final[Mapping[str, Pooling]] = {
    "cls": "cls",
    "cls_token": "cls",
    "mean": "mean",
    "mean_tokens": "mean",
    # They differ in a vector's length alone, and ours are all of length 1.
    "mean_sqrt_len": "mean",
    "mean_sqrt_len_tokens": "mean",
    "lasttoken": "last",
}
"""sentence-transformers' names."""


class Described(msgspec.Struct, frozen=True):
    """What a folder says; None where it does not."""

    pooling: Pooling | None = None
    longest: int | None = None
    """Tokens of a text, those around it included."""


def choose(names: Iterable[str]) -> set[str]:
    """Of a repository's file names those that are read here."""
    return {name for name in names if _FILES.fullmatch(name)}


def describe(folder: Path, name: str) -> Described:
    """Raises ModelNotConfigured, calling the model `name`, for what cannot be read or is not known here."""
    longest = None
    if (folder / TRANSFORMER).is_file():
        given = read_object(folder / TRANSFORMER, name, _KIND).get("max_seq_length")
        longest = given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else None
    paths = _modules(folder, name) if (folder / MODULES).is_file() else ["1_Pooling"]
    files = [folder / path / "config.json" for path in paths if (folder / path / "config.json").is_file()]
    return Described(_mode(read_object(files[0], name, _KIND), name) if files else None, longest)


def _modules(folder: Path, name: str) -> list[str]:
    """The folders of the modules that pool."""
    try:
        modules = msgspec.json.decode((folder / MODULES).read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.DecodeError) as error:
        raise ModelNotConfigured(f"{name}: {MODULES} cannot be read") from error
    found = []
    for module in modules:
        kind, path = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        if kind == "Pooling" and re.fullmatch(r"[\w.-]+", path) and ".." not in path:
            found.append(path)
        elif kind not in ("Transformer", "Normalize"):
            raise ModelNotConfigured(f"{name} has a part that is not supported: {kind[:40] or 'unnamed'} in {MODULES}")
    return found


def _mode(config: Mapping[str, Any], name: str) -> Pooling:
    prefix = "pooling_mode_"
    asked = [key.removeprefix(prefix) for key, value in config.items() if key.startswith(prefix) and value is True]
    if isinstance(single := config.get("pooling_mode"), str):
        asked = [single]
    if len(asked) == 1 and asked[0] in _MODES:
        return _MODES[asked[0]]
    raise ModelNotConfigured(
        f"{name} pools tokens in a way that is not supported: {' and '.join(asked)[:80] or 'none'}; "
        "mean, cls and lasttoken are"
    )
