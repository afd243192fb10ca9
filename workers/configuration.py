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
