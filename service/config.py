"""Every setting of the service and its default, once; read from flags, environment, a file and the defaults.

Knows names and values; starts nothing.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from protocol.settings import cache_bytes

PREFIX = "STARLING_"
CONFIG_VARIABLE = "STARLING_CONFIG"
"""Names the TOML file when `--config` does not; the one variable that is no setting."""

_SIZES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_UNREAD = re.compile("[\ud800-\udfff]")
"""What Python makes of bytes that the locale cannot read. Such text cannot be handed to a worker."""
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class ConfigError(Exception):
    """A setting that cannot be used; the message names it, where it came from and what is allowed."""


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
    llm_model: Annotated[
        str, Meta(description="a folder, a Hugging Face id or a starter's name; empty: no language model")
    ] = "smollm2-135m-instruct"
    llm_cache_bytes: Annotated[int, Meta(ge=0, description="memory for what finished conversations leave behind")] = (
        msgspec.field(default_factory=cache_bytes)
    )
    whisper_workers: Annotated[int, Meta(ge=1, le=64, description="processes for the speech model")] = 1
    media_workers: Annotated[int, Meta(ge=1, le=64, description="processes that decode uploads")] = 2
    live_media_workers: Annotated[int, Meta(ge=1, le=64, description="processes that listen to live speech")] = 1
    offline: Annotated[bool, Meta(description="never ask the Hugging Face hub")] = False
    strict_models: Annotated[bool, Meta(description="404 for an unknown model name instead of the default")] = False

    max_upload_bytes: Annotated[int, Meta(ge=1, description="largest multipart body")] = 200 << 20
    max_json_bytes: Annotated[int, Meta(ge=1, description="largest JSON body")] = 32 << 20
    upload_idle_s: Annotated[float, Meta(gt=0, description="seconds that an upload may send nothing")] = 60.0
    max_audio_seconds: Annotated[float, Meta(gt=0, description="longest recording")] = 4 * 3600.0
    max_decode_seconds: Annotated[float, Meta(gt=0, description="longest time to decode one file")] = 300.0
    media_memory_bytes: Annotated[int, Meta(ge=64 << 20, description="memory that decoding may add")] = 2 << 30

    session_idle: Annotated[
        float, Meta(gt=0, description="seconds without audio after which a dictation is finished")
    ] = 600.0
    session_keep: Annotated[float, Meta(gt=0, description="seconds for which a finished dictation is kept")] = 3600.0
    max_sessions: Annotated[int, Meta(ge=1, description="dictations that may be open at once")] = 64
    max_session_seconds: Annotated[float, Meta(gt=0, description="longest dictation")] = 4 * 3600.0
    max_session_bytes: Annotated[int, Meta(ge=1 << 20, description="disk that all dictations together may take")] = (
        16 << 30
    )

    response_keep: Annotated[
        float, Meta(gt=0, description="seconds for which a stored response is kept after its conversation's last turn")
    ] = 30 * 86400.0
    max_response_bytes: Annotated[
        int, Meta(ge=1 << 16, description="disk that all stored responses together may take")
    ] = 256 << 20

    queue_limit: Annotated[int, Meta(ge=1, description="jobs that may wait in front of each kind of worker")] = 64
    start_wait: Annotated[float, Meta(gt=0, description="seconds that a job waits for a starting worker")] = 60.0
    stall_seconds: Annotated[
        float, Meta(gt=0, description="silence after which a worker counts as hung; transcribing adds to it by length")
    ] = 60.0
    faithful_idle_s: Annotated[
        float, Meta(gt=0, description="seconds without a faithful request after which its process ends")
    ] = 60.0
    keepalive_s: Annotated[float, Meta(gt=0, description="seconds between comments on a silent stream")] = 15.0
    unread_s: Annotated[float, Meta(gt=0, description="seconds for which a client may leave a stream unread")] = 60.0
    grace: Annotated[float, Meta(ge=0, description="seconds that running work may take at shutdown")] = 10.0
    trace: Annotated[bool, Meta(description="log the phases of every request to the language model")] = False
    allow_trace: Annotated[bool, Meta(description="log them for requests with the header x-starling-trace: 1")] = False
    trace_text: Annotated[bool, Meta(description="let such a log show what the model said")] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="how much is logged")] = "info"


class Setting(NamedTuple):
    """One field of Config, as its annotation describes it."""

    name: str
    type: Any
    description: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_bool(self) -> bool:
        return get_args(self.type)[0] is bool

    @property
    def in_bytes(self) -> bool:
        return self.name.endswith("_bytes")

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it may have, where they are names; empty otherwise."""
        kind = get_args(self.type)[0]
        return get_args(kind) if get_origin(kind) is Literal else ()

    @property
    def metavar(self) -> str:
        if self.choices:
            return "|".join(self.choices)
        number = {int: "BYTES" if self.in_bytes else "N", float: "SECONDS"}
        return number.get(get_args(self.type)[0]) or self.name.rpartition("_")[2].upper()


def settings() -> dict[str, Setting]:
    """Every setting by name, in Config's order."""
    hints = get_type_hints(Config, include_extras=True)
    return {name: Setting(name, hint, _description(hint)) for name, hint in hints.items()}


def _description(hint: Any) -> str:
    return next(meta.description for meta in get_args(hint)[1:] if isinstance(meta, Meta) and meta.description)


def add_flags(parser: argparse.ArgumentParser, names: Collection[str] = ()) -> None:
    """A flag for each setting (or for `names`); only those given appear in the parsed namespace, unconverted."""
    defaults = Config()
    group = parser.add_argument_group("settings", f"each also as {PREFIX}NAME and as `name = …` in the --config file")
    for setting in settings().values():
        if names and setting.name not in names:
            continue
        default = _shown(setting, getattr(defaults, setting.name))
        text = f"{setting.description} ({default})".replace("%", "%%")
        if setting.is_bool:
            action = argparse.BooleanOptionalAction
            group.add_argument(setting.flag, action=action, default=argparse.SUPPRESS, help=text)
        else:
            group.add_argument(setting.flag, metavar=setting.metavar, default=argparse.SUPPRESS, help=text)


def _shown(setting: Setting, default: object) -> str:
    if setting.is_bool:
        return "on" if default else "off"
    if setting.in_bytes and isinstance(default, int) and default >= 1 << 20:
        return f"{default >> 20}MiB"
    return f"{default:g}" if isinstance(default, float) else str(default) or "none"


def load(file: str | Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """Flags before environment before file before defaults. Raises ConfigError for the first thing wrong.

    `flags` is what `add_flags` parsed. An empty variable is no value. Relative folders are made absolute.
    """
    values: dict[str, object] = {}
    known = settings()
    for given in (*_from_file(file), *_from_environment(environ), *_from_flags(flags)):
        if given.name not in known:
            raise ConfigError(f"{given.source}: unknown setting{_hint(given, known)}")
        values[given.name] = _convert(given, known[given.name])
    config = Config(**values)  # type: ignore[arg-type]  # each value was converted to its field's type
    config = msgspec.structs.replace(config, data_dir=str(Path(config.data_dir).expanduser().absolute()))
    for name in known:
        if isinstance(value := getattr(config, name), str) and _UNREAD.search(value):
            raise ConfigError(f"{name}: expected UTF-8 text, not {value!a}")
    return config


class _Given(NamedTuple):
    """A value before its conversion. `typed`: it comes from a file, where a number is no text."""

    source: str
    name: str
    value: object
    typed: bool = False


def _from_file(file: str | Path | None) -> list[_Given]:
    if file is None:
        return []
    try:
        table = tomllib.loads(Path(file).expanduser().read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not TOML: {error}") from error
    return [_Given(f"{file}: {name}", name, value, typed=True) for name, value in table.items()]


def _from_environment(environ: Mapping[str, str]) -> list[_Given]:
    return [
        _Given(variable, variable.removeprefix(PREFIX).lower(), value)
        for variable, value in sorted(environ.items())
        if variable.startswith(PREFIX) and variable != CONFIG_VARIABLE and value
    ]


def _from_flags(flags: Mapping[str, object]) -> list[_Given]:
    return [_Given("--" + name.replace("_", "-"), name, value) for name, value in flags.items()]


def _hint(given: _Given, known: Mapping[str, Setting]) -> str:
    """The nearest known name, spelt as this source spells names."""
    if not (close := difflib.get_close_matches(given.name.replace("-", "_"), known, n=1)):
        return ""
    return f"; did you mean {PREFIX + close[0].upper() if given.source.startswith(PREFIX) else close[0]}?"


def _convert(given: _Given, setting: Setting) -> object:
    value = given.value
    if isinstance(value, str) and setting.in_bytes:
        value = _bytes(value)
    elif isinstance(value, str) and setting.is_bool and not given.typed:
        value = _BOOLEANS.get(value.lower(), value)
    try:
        converted: object = msgspec.convert(value, setting.type, strict=given.typed)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{given.source}: expected {_allowed(setting)}, not {given.value!r}") from error
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ConfigError(f"{given.source}: expected {_allowed(setting)}, not {given.value!r}")
    return converted


def _bytes(text: str) -> object:
    """`200MiB`, `1 GiB` and `4096` as a number; anything else as it was, for the conversion to refuse."""
    found = re.fullmatch(r"(\d+)\s*([KMG]iB|B)?", text, re.IGNORECASE)
    return int(found[1]) * _SIZES[(found[2] or "b").lower()] if found else text


def _allowed(setting: Setting) -> str:
    """What a setting takes, in a reader's words; its limits come from its annotation alone."""
    kind, *about = get_args(setting.type)
    if setting.choices:
        return ", ".join(setting.choices)
    limits = next((meta for meta in about if isinstance(meta, Meta)), Meta())
    if setting.in_bytes:
        return f"a number of bytes, at least {_shown(setting, limits.ge)}, plain or with KiB, MiB or GiB"
    words = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")
    if limits.ge is not None and limits.le is not None:
        return f"{words} from {limits.ge:g} to {limits.le:g}"
    if limits.ge is not None:
        return f"{words}, at least {limits.ge:g}"
    return words if limits.gt is None else f"{words} greater than {limits.gt:g}"
