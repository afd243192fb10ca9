"""The data directory: recordings and conversations pass through it, so that it is for its owner alone."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from service.cli.refusal import CannotServe

log = logging.getLogger("starling")

OURS = ("blas", "models", "responses", "sessions", "spool")
"""What the names of all that Starling keeps there begin with."""


def make(folder: Path) -> None:
    """It is there, writable, and closed to others. Raises CannotServe.

    A folder that was there and open to others is closed only if it holds nothing but what is ours: it may be a
    person's home. In another one, what is private (spool, sessions, responses) is so by its own mode.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotServe(f"the data directory {folder} cannot be made ({error.strerror}): see --data-dir") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CannotServe(f"the data directory {folder} is not writable: see --data-dir")
    about = folder.stat()
    if about.st_mode & 0o077:
        if about.st_uid == os.geteuid() and all(each.name.startswith(OURS) for each in folder.iterdir()):
            folder.chmod(0o700)
        else:
            log.warning("others may look into the data directory %s, which holds other things too", folder)
