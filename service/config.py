"""Every setting of the service and its default, once; read from flags, environment, a file and the defaults.

Knows names and values; starts nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta


def default_data_dir() -> str:
    """Where the platform keeps an application's data."""
    if sys.platform == "darwin":
        return str(Path.home() / "Library" / "Application Support" / "starling")
    return str(Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "starling")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One field a setting: `--max-upload-bytes`, `STARLING_MAX_UPLOAD_BYTES`, `max_upload_bytes = …`."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0 takes a free one")] = 8080
    data_dir: Annotated[str, Meta(description="where models, spools and sessions are kept")] = msgspec.field(
        default_factory=default_data_dir
    )
    whisper_model: Annotated[str, Meta(description="a folder, a Hugging Face id or a starter's name")] = "whisper-base"
    llm_model: Annotated[str, Meta(description="a folder or a Hugging Face id (not yet supported)")] = ""
    whisper_workers: Annotated[int, Meta(ge=1, le=64, description="processes for the speech model")] = 1
    media_workers: Annotated[int, Meta(ge=1, le=64, description="processes that decode uploads")] = 2
    offline: Annotated[bool, Meta(description="never ask the Hugging Face hub")] = False
    strict_models: Annotated[bool, Meta(description="404 for an unknown model name instead of the default")] = False

    max_upload_bytes: Annotated[int, Meta(ge=1, description="largest multipart body")] = 200 << 20
    max_json_bytes: Annotated[int, Meta(ge=1, description="largest JSON body")] = 32 << 20
    max_audio_seconds: Annotated[float, Meta(gt=0, description="longest recording")] = 4 * 3600.0
    max_decode_seconds: Annotated[float, Meta(gt=0, description="longest time to decode one file")] = 300.0
    media_memory_bytes: Annotated[int, Meta(ge=64 << 20, description="memory that decoding may add")] = 2 << 30

    queue_limit: Annotated[int, Meta(ge=1, description="jobs that may wait in front of each kind of worker")] = 64
    start_wait: Annotated[float, Meta(gt=0, description="seconds that a job waits for a starting worker")] = 60.0
    stall_seconds: Annotated[
        float, Meta(gt=0, description="silence after which a worker counts as hung; transcribing adds to it by length")
    ] = 60.0
    keepalive_s: Annotated[float, Meta(gt=0, description="seconds between comments on a silent stream")] = 15.0
    grace: Annotated[float, Meta(ge=0, description="seconds that running work may take at shutdown")] = 10.0
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="how much is logged")] = "info"
