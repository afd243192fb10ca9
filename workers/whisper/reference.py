"""mlx-whisper's modules one by one: its model class and tokenizer, without what only its `transcribe` needs.

Knows where that package lies and nothing of what is in it. numba and scipy stay out: 1 s and 100 MB.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = "starling_mlx_whisper"
"""Another name for the same folder, so that a process may import mlx_whisper as a whole as well."""


def folder() -> Path:
    """Where mlx-whisper is installed. Looking does not import it."""
    found = importlib.util.find_spec("mlx_whisper")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0])


def module(name: str) -> ModuleType:
    """`mlx_whisper.{name}` and what it imports itself, but not mlx_whisper/__init__.py, which imports everything."""
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(folder())]
        sys.modules[PACKAGE] = package
    return importlib.import_module(f"{PACKAGE}.{name}")
