"""The JSON files that come with a model's weights. Knows JSON; knows no member of any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from protocol.errors import ModelNotConfigured


def read_object(path: Path, name: str, what: str) -> dict[str, Any]:
    """What `path` holds. Raises ModelNotConfigured, worded for clients: `name` is the model, `what` it should be."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelNotConfigured(f"{name} is no {what}: it has no {path.name}") from None
    except OSError as error:
        raise ModelNotConfigured(f"{name}: {path.name} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ModelNotConfigured(f"{name}: {path.name} is no JSON") from error
    if not isinstance(found, dict):
        raise ModelNotConfigured(f"{name}: {path.name} holds no object")
    return found


def parts_of(index: Path, name: str, what: str) -> set[str]:
    """The names of the files that a model's weights are in, without folders. Raises ModelNotConfigured."""
    shards = read_object(index, name, what).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelNotConfigured(f"{name}: {index.name} names no files")
    return {Path(str(shard)).name for shard in shards.values()}
