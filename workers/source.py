"""Where a model is: a starter, a folder or a Hugging Face id. Knows names and kinds; opens no weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from protocol.errors import ModelNotConfigured
from protocol.events import Loading, ModelKind
from workers import hub
from workers.starter import catalog

_CALLED: Final[Mapping[ModelKind, str]] = MappingProxyType(
    {"whisper": "speech model", "llm": "language model", "embedding": "embedding model"}
)


def find(
    model: str, kind: ModelKind, *, data_dir: str | Path, offline: bool, report: Callable[[Loading], None]
) -> Path:
    """The folder with the model's files, converted or downloaded if need be. Raises ModelNotConfigured."""
    starters = catalog.names(kind)
    if model in starters:
        return catalog.prepare(model, data_dir, report)
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        return folder
    if hub.is_id(model):
        return hub.find(model, kind, offline=offline, report=report)
    raise ModelNotConfigured(
        f"there is no {_CALLED[kind]} {display_name(model)!r}: name a folder, a Hugging Face id (owner/name) "
        f"or a starter ({', '.join(starters)})"
    )


def display_name(model: str) -> str:
    """How clients see it: as it was given, but of a folder only the last part, so that no path leaks."""
    if model in catalog.STARTERS or (hub.is_id(model) and not Path(model).is_dir()):
        return model
    return Path(model).expanduser().resolve().name or model
