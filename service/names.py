"""What the configured models are called: their ids, and the aliases that an operator gave them.

Knows names and folders; knows no worker, no cache and no kind of model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)

MAX_ALIAS = 200
"""Characters."""


def public_id(model: str) -> str:
    """A hub id or a starter's name as it is; of a folder only its own name, for clients need no paths of ours."""
    path = Path(model).expanduser()
    return model if HUB_ID.fullmatch(model) and not path.is_dir() else path.resolve().name


def by_id(models: Iterable[str]) -> dict[str, str]:
    """Each model as it was configured under its id, in the same order. Raises ValueError where two have one id."""
    found: dict[str, str] = {}
    for model in dict.fromkeys(models):
        if (other := found.setdefault(public_id(model), model)) != model:
            raise ValueError(f"{other!r} and {model!r} would both be called {public_id(model)!r}; rename a folder")
    return found


def by_alias(pairs: Iterable[str], models: Iterable[str]) -> dict[str, str]:
    """The id of the model that each alias stands for. `pairs`: NAME=MODEL, the latter by its id or as configured.

    Raises ValueError for what is no such pair, names no configured model, or gives a model's id another meaning.
    """
    ids = by_id(models)
    named = {given: id for id, given in ids.items()} | {id: id for id in ids}
    found: dict[str, str] = {}
    for pair in pairs:
        name, _, model = (part.strip() for part in pair.partition("="))
        if not name or not model or len(name) > MAX_ALIAS:
            raise ValueError(f"expected NAME=MODEL, the name of at most {MAX_ALIAS} characters, not {pair!r}")
        if model not in named:
            raise ValueError(f"{pair!r} names none of the configured models, which are {', '.join(ids)}")
        if found.setdefault(name, named[model]) != named[model]:
            raise ValueError(f"{name!r} is given to two models")
        if named.get(name, named[model]) != named[model]:
            raise ValueError(f"{name!r} is the name of another model")
    return found
