"""The adapters that requests can ask for, and for how long their weights stay: until the last job with them is over.

Knows ids, keys and who uses them; how adapters are read and computed is said beside it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from protocol.errors import InvalidValue, ModelNotConfigured, UnknownAdapter
from protocol.events import Adapter, Mounted
from protocol.jobs import BASE_MODEL, ListAdapters, MountAdapter, UnmountAdapter
from protocol.settings import AdapterSource, LlmSettings
from workers.llm.adapters.files import Pair, read
from workers.llm.adapters.serving import BASE, Serving
from workers.llm.adapters.sites import Site, sites

_log = logging.getLogger(__name__)

MOST = 32
"""Adapters at once: their weights lie beside the model's."""


@dataclass
class _Held:
    """An adapter whose weights are there. `users`: jobs that run with it."""

    key: str
    adapter: Adapter
    users: int = 0


class Mounts:
    """Adapters of one network. Only the thread that computes may call."""

    def __init__(self, network: Any, *, default: str = "", gone: Callable[[str], None] = lambda _: None) -> None:
        """default: the id of the adapter for jobs that name none. gone: told the key of one whose weights have gone."""
        self.serving = Serving()
        self._network = network
        self._default = default
        self._gone = gone
        self._mounted: dict[str, _Held] = {}
        """By id: what can be asked for."""
        self._held: dict[str, _Held] = {}
        """By key: all whose weights are there."""
        self._numbers = itertools.count(1)

    @cached_property
    def _sites(self) -> list[Site]:
        """Looked up when the first adapter is mounted: nothing stands anywhere then."""
        return sites(self._network, self.serving)

    def do(self, job: MountAdapter | UnmountAdapter | ListAdapters) -> Mounted:
        """Raises InvalidValue or UnknownAdapter; nothing has changed then."""
        match job:
            case MountAdapter(source):
                self.mount(source)
            case UnmountAdapter(id):
                self._unmount(id)
            case ListAdapters():
                pass
        return Mounted(tuple(held.adapter for held in self._mounted.values()))

    def mount(self, source: AdapterSource) -> None:
        """Raises InvalidValue."""
        if source.id in self._mounted:
            raise InvalidValue(f"id {source.id!r} is the name of a mounted adapter; unmount it first", param="id")
        if len(self._held) >= MOST:
            raise InvalidValue(f"{MOST} adapters are mounted, which is the most; unmount one first", param="id")
        sizes = {name: size for site in self._sites for name, size in site.sizes.items()}
        found = read(Path(source.folder), source.path, sizes)
        # No id comes back under the same key: what was computed under another's weights is no prefix of its own.
        key = f"{source.id}#{next(self._numbers)}"
        for site in self._sites:
            site.attach(key, _of(site, found.pairs))
        held = _Held(key, Adapter(source, found.rank, found.scale, found.size_bytes, len(found.pairs)))
        self._mounted[source.id] = self._held[key] = held

    def enter(self, adapter: str) -> tuple[str, str | None]:
        """A job begins: its key, for as long as it does not `leave`, and the id of its adapter.

        adapter: as Generation has it. Raises UnknownAdapter.
        """
        wanted = adapter or (self._default if self._default in self._mounted else BASE_MODEL)
        if wanted == BASE_MODEL:
            return BASE, None
        if wanted not in self._mounted:
            raise UnknownAdapter(f"there is no adapter {wanted[:100]!r} here: {self._known()}", param="adapter")
        held = self._mounted[wanted]
        held.users += 1
        return held.key, wanted

    def leave(self, key: str) -> None:
        """A job is over, and nothing of it is computed any more."""
        if key != BASE:
            held = self._held[key]
            held.users -= 1
            self._drop_unless_used(held)

    def _unmount(self, id: str) -> None:
        if id not in self._mounted:
            raise UnknownAdapter(f"there is no adapter {id[:100]!r} here: {self._known()}")
        self._drop_unless_used(self._mounted.pop(id))

    def _drop_unless_used(self, held: _Held) -> None:
        if held.users or self._mounted.get(held.adapter.source.id) is held:
            return
        for site in self._sites:
            site.detach(held.key)
        del self._held[held.key]
        self._gone(held.key)

    def _known(self) -> str:
        names = ", ".join(self._mounted)
        return f"mounted are {names}" if names else "none is mounted"


def mounted(network: Any, settings: LlmSettings, gone: Callable[[str], None]) -> Mounts:
    """With the adapters of the settings; those that do not fit any more are left out. Raises ModelNotConfigured where
    that is the default one."""
    mounts = Mounts(network, default=settings.default_adapter, gone=gone)
    for source in settings.adapters:
        try:
            mounts.mount(source)
        except InvalidValue as error:
            if source.id == settings.default_adapter:
                raise ModelNotConfigured(error.message) from error
            _log.warning("%s", error.message)
    return mounts


def _of(site: Site, pairs: Mapping[str, Pair]) -> dict[str, Pair]:
    return {name: pairs[name] for name in site.sizes if name in pairs}
