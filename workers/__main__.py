"""`python -m workers FD`: one worker process. Knows which settings mean which engine; imports only that one.

FD is the worker's end of a socket pair; its first frame is the settings, its end ends the process.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final, assert_never

from setproctitle import setproctitle

from protocol import lines
from protocol.settings import EmbedSettings, LlmSettings, MediaSettings, OracleSettings, Settings, WhisperSettings
from workers.loop import Engine, Report, serve
from workers.priority import give_way


def _media(settings: MediaSettings, report: Report) -> Engine[Any]:
    from workers.media.engine import build

    return build(settings, report)


def _oracle(settings: OracleSettings, report: Report) -> Engine[Any]:
    from workers.oracle.engine import build

    return build(settings, report)


def _whisper(settings: WhisperSettings, report: Report) -> Engine[Any]:
    from workers.whisper.engine import build

    return build(settings, report)


def _llm(settings: LlmSettings, report: Report) -> Engine[Any]:
    from workers.llm.engine import build

    return build(settings, report)


def _embed(settings: EmbedSettings, report: Report) -> Engine[Any]:
    from workers.embed.engine import build

    return build(settings, report)


ENGINES: Final[Mapping[type[Settings], Callable[[Any, Report], Engine[Any]]]] = MappingProxyType(
    {
        MediaSettings: _media,
        WhisperSettings: _whisper,
        OracleSettings: _oracle,
        LlmSettings: _llm,
        EmbedSettings: _embed,
    }
)


def title(settings: Settings) -> str:
    """What `ps` shows."""
    match settings:
        case MediaSettings():
            return "starling: media"
        case WhisperSettings():
            return f"starling: whisper {PurePath(settings.model).name}"
        case OracleSettings():
            return f"starling: oracle {PurePath(settings.model).name}"
        case LlmSettings():
            return f"starling: llm {PurePath(settings.model).name}"
        case EmbedSettings():
            return f"starling: embedding {PurePath(settings.model).name}"
        case _:
            assert_never(settings)


def build(settings: Settings, report: Report) -> Engine[Any]:
    """The engine that `settings` ask for. Raises Failure when it cannot be had."""
    setproctitle(title(settings))
    return ENGINES[type(settings)](settings, report)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the service's; its end is ours.
    give_way()
    os.dup2(2, 1)  # Whatever prints, prints into the log.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    faulthandler.enable()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(lines.Formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    serve(int(sys.argv[1]), build)


if __name__ == "__main__":
    main()
