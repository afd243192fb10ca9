"""LoRA adapters as the service sees them: which folders may be mounted, under which names, and what outlives a worker.

Knows folders and names; what is in an adapter's files is the worker's affair.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from protocol.errors import InvalidRequest, InvalidValue, UnknownAdapter
from protocol.events import Adapter, Event, Mounted
from protocol.jobs import BASE_MODEL
from protocol.settings import AdapterSource, LlmSettings, Settings
from service import forms

_ID = "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or a digit"


class MountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/adapters."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z", description=_ID)]
    path: Annotated[str, Meta(min_length=1, max_length=1024, description="a folder below the one for adapters")]
    model: str = ""

    def source(self, root: str) -> AdapterSource:
        """Where it lies, `root` being the folder of all adapters. Raises what `located` does."""
        if self.id == BASE_MODEL:
            raise forms.wrong("id", self.id, f"anything but {BASE_MODEL!r}, which means no adapter")
        folder = located(root, self.path)
        return AdapterSource(self.id, str(folder), str(folder.relative_to(Path(root).resolve())))


def located(root: str, path: str) -> Path:
    """The folder that `path` names below `root`, all links followed. It looks at the disk.

    Raises InvalidRequest where no root is configured, InvalidValue for what leads out of it, UnknownAdapter for what
    is not there.
    """
    if not root:
        raise InvalidRequest("no folder of adapters is configured: start the service with --adapter-dir")
    base = Path(root).resolve()
    try:
        found = (base / path).resolve()
        if not found.is_relative_to(base):
            raise _outside(path)
        if not found.is_dir():
            raise UnknownAdapter(f"there is no folder {path[: forms.SHOWN]!r} among the adapters", param="path")
        for entry in found.iterdir():
            # The worker opens files by their names: none of them may be a way out either.
            if not entry.resolve().is_relative_to(base):
                raise _outside(path)
    except (OSError, ValueError, RuntimeError) as error:
        # A loop of links, a name that is too long, a folder that may not be read.
        raise InvalidValue(f"path {path[: forms.SHOWN]!r} cannot be followed", param="path") from error
    return found


def _outside(path: str) -> InvalidValue:
    return InvalidValue(f"path {path[: forms.SHOWN]!r} leads out of the folder of adapters", param="path")


def name_of(folder: str) -> str:
    """What the adapter in a folder is called when nobody gave it a name; empty: there is none."""
    return Path(folder).name if folder else ""


def at_start(folder: str) -> tuple[AdapterSource, ...]:
    """The adapter that the service was started with."""
    return (AdapterSource(name_of(folder), folder, name_of(folder)),) if folder else ()


def learn(settings: Settings, event: Event) -> Settings:
    """The settings of the next worker: it mounts what this one has."""
    if not isinstance(event, Mounted) or not isinstance(settings, LlmSettings):
        return settings
    return msgspec.structs.replace(settings, adapters=tuple(adapter.source for adapter in event.adapters))


class Told(TypedDict):
    """An adapter as clients see it. `path`: below the folder of all. `rank`: the largest of all layers.
    `mounted_layers`: linear layers that it changes."""

    id: str
    object: Literal["adapter"]
    path: str
    rank: int
    scale: float
    size_bytes: int
    mounted_layers: int


class Listed(TypedDict):
    object: Literal["list"]
    adapters: list[Told]


class Unmounted(TypedDict):
    id: str
    object: Literal["adapter"]
    deleted: Literal[True]


def told(adapter: Adapter) -> Told:
    return {
        "id": adapter.source.id,
        "object": "adapter",
        "path": adapter.source.path,
        "rank": adapter.rank,
        "scale": adapter.scale,
        "size_bytes": adapter.size_bytes,
        "mounted_layers": adapter.mounted_layers,
    }
