"""What is said, and what is said to nobody."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from service.cli.say import say


class Full(io.StringIO):
    """A standard output on a full disk."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_line_that_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Full()
    monkeypatch.setattr(sys, "stdout", full)
    say("ready")
    assert full.getvalue() == "ready\n"


def test_a_line_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    say("ready")
    assert capsys.readouterr().out == "ready\n"
