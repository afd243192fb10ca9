"""The API keys that a service is started with: given, read from a file, or made. Knows no request.

A key on the command line is visible to this machine's users for the moment until `hide` has run.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

import msgspec
from setproctitle import setproctitle

from service.cli.refusal import CannotServe
from service.config import GENERATE, Config
from service.words import Word

log = logging.getLogger("starling")


def settled(config: Config) -> tuple[Config, str | None]:
    """The settings with all keys in them, and the one that was made, if one was. Raises CannotServe."""
    keys = dict.fromkeys((*config.api_key, *_read(config.api_key_file)))
    made = None
    if GENERATE in keys:
        made = f"sk-{secrets.token_urlsafe(32)}"
        keys = dict.fromkeys(made if key == GENERATE else key for key in keys)
    return msgspec.structs.replace(config, api_key=tuple(keys)), made


def hide(where: str) -> None:
    """What `ps` shows from here on."""
    setproctitle(f"starling serve on {where}")


def _read(path: str) -> list[str]:
    """A key on each line; empty lines and those that begin with # are none."""
    if not path:
        return []
    try:
        lines = [line.strip() for line in Path(path).read_text("utf-8").splitlines()]
        if Path(path).stat().st_mode & 0o077:
            log.warning("others may read the API keys in %s: chmod 600 mends it", path)
    except (OSError, UnicodeDecodeError) as error:
        raise CannotServe(f"--api-key-file {path} cannot be read: {getattr(error, 'strerror', 'not UTF-8')}") from error
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise CannotServe(f"--api-key-file {path} holds no key: one on each line is expected")
    try:
        return msgspec.convert(found, list[Word])
    except msgspec.ValidationError:
        raise CannotServe(f"--api-key-file {path}: a key is visible ASCII without spaces or commas") from None
