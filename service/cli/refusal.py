"""Why `starling serve` starts nothing."""

from __future__ import annotations


class CannotServe(Exception):
    """Nothing was started; the message says what to do."""
