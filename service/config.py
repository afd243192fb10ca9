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

from service.names import by_alias, by_id
from service.words import Hosts, Origins, Words, named

LEAST_CACHE_BYTES = 112 << 20
"""A conversation of 2500 tokens with a model of 135 million parameters: 46 KiB of keys and values each. With it full
the starter's worker stays below 800 MB."""
CACHE_MEMORY = 224
"""One part in so many of the machine's memory is for what finished conversations leave behind."""


def cache_bytes() -> int:
    """The prompt cache's default: as much as small machines can spare, and more where there is more."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(LEAST_CACHE_BYTES, memory // CACHE_MEMORY)


GENERATE = "generate"
"""Instead of an API key: make one."""

PREFIX = "STARLING_"
CONFIG_VARIABLE = "STARLING_CONFIG"
"""Names the TOML file when `--config` does not; the one variable that is no setting."""

_SIZES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_UNREAD = re.compile("[\ud800-\udfff]")
"""What Python makes of bytes that the locale cannot read. Such text cannot be handed to a worker."""
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


PATHS = ("data_dir", "uds", "api_key_file", "ready_file", "adapter", "adapter_dir")


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
    uds: Annotated[str, Meta(description="path of a Unix socket to listen on, instead of host and port")] = ""
    api_key: Annotated[
        Words, Meta(description="a key that clients must send, several by repetition; `generate` makes one")
    ] = ()
    api_key_file: Annotated[str, Meta(description="a file with a key on each line")] = ""
    insecure: Annotated[bool, Meta(description="let other machines in without any key")] = False
    allowed_host: Annotated[
        Hosts, Meta(description="a further name of this server that a Host header may have; * allows all")
    ] = ()
    cors_origin: Annotated[
        Origins, Meta(description="an origin whose pages may use this server, as scheme://host:port; * lets all in")
    ] = ()
    ready_file: Annotated[str, Meta(description="a file for url, pid and a generated key, once it listens")] = ""
    exit_with_parent: Annotated[bool, Meta(description="stop when standard input, a pipe, is closed")] = False
    data_dir: Annotated[str, Meta(description="where models, spools and sessions are kept")] = msgspec.field(
        default_factory=default_data_dir
    )
    whisper_model: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="a folder, a Hugging Face id or a starter's name; the first is the default"),
    ] = ("whisper-base",)
    llm_model: Annotated[tuple[str, ...], Meta(description="the same of language models; empty: none")] = (
        "smollm2-135m-instruct",
    )
    embedding_model: Annotated[
        tuple[str, ...],
        Meta(description="the same of models for embeddings; empty: language models make them"),
    ] = ()
    model_alias: Annotated[
        tuple[str, ...], Meta(description="NAME=MODEL: another name for one of them in requests")
    ] = ()
    adapter: Annotated[
        str,
        Meta(description="a folder with a LoRA adapter, mounted at the start as the first language model's default"),
    ] = ""
    adapter_dir: Annotated[str, Meta(description="the folder from which LoRA adapters may be mounted")] = ""
    idle_unload: Annotated[
        float, Meta(ge=0, description="seconds without a request after which a model leaves memory; 0: never")
    ] = 0.0
    memory_limit: Annotated[
        int, Meta(ge=0, description="bytes for all workers: over it the model used longest ago goes; 0: no limit")
    ] = 0
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
    upload_rate_bytes: Annotated[
        int, Meta(ge=0, description="a second, which an upload must bring on average beyond that time; 0: any")
    ] = 256
    max_requests: Annotated[int, Meta(ge=1, description="requests that may be under way at once")] = 1024
    max_client_requests: Annotated[int, Meta(ge=1, description="of these, of one client")] = 256
    max_audio_seconds: Annotated[float, Meta(gt=0, description="longest recording")] = 4 * 3600.0
    max_decode_seconds: Annotated[float, Meta(gt=0, description="longest time to decode one file")] = 300.0
    media_memory_bytes: Annotated[int, Meta(ge=64 << 20, description="memory that decoding may add")] = 2 << 30

    session_idle: Annotated[
        float, Meta(gt=0, description="seconds without audio after which a dictation is finished")
    ] = 600.0
    session_keep: Annotated[float, Meta(gt=0, description="seconds for which a finished dictation is kept")] = 3600.0
    max_sessions: Annotated[int, Meta(ge=1, description="dictations that may be open at once")] = 64
    max_client_sessions: Annotated[int, Meta(ge=1, description="of these, of one client")] = 32
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
    unread_s: Annotated[float, Meta(gt=0, description="seconds for which a client may leave an answer unread")] = 60.0
    grace: Annotated[float, Meta(ge=0, description="seconds that running work may take at shutdown")] = 10.0
    trace: Annotated[bool, Meta(description="log the phases of every request to the language model")] = False
    allow_trace: Annotated[bool, Meta(description="log them for requests with the header x-starling-trace: 1")] = False
    trace_text: Annotated[bool, Meta(description="let such a log show what the model said")] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="how much is logged")] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="lines for people, or for programs")] = "text"

    def __repr__(self) -> str:
        """Whatever prints it, prints no key."""
        kept = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "api_key")
        return f"Config({kept}, {len(self.api_key)} keys)"

    @property
    def models(self) -> tuple[str, ...]:
        """Those of every kind."""
        return (*self.whisper_model, *self.llm_model, *self.embedding_model)


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
    def is_list(self) -> bool:
        """Several texts: its flag may be given several times, its variable has commas between them."""
        return get_origin(get_args(self.type)[0]) is tuple

    @property
    def secret(self) -> bool:
        """Its values are shown nowhere."""
        return self.name == "api_key"

    @property
    def in_bytes(self) -> bool:
        return self.name.endswith(("_bytes", "memory_limit"))

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
    about = f"each also as {PREFIX}NAME and as `name = …` in the --config file; those with … may be given several times"
    group = parser.add_argument_group("settings", about)
    for setting in settings().values():
        if names and setting.name not in names:
            continue
        default = _shown(setting, getattr(defaults, setting.name))
        text = f"{setting.description} ({default})".replace("%", "%%")
        if setting.is_bool:
            action = argparse.BooleanOptionalAction
            group.add_argument(setting.flag, action=action, default=argparse.SUPPRESS, help=text)
        elif setting.is_list:
            shown = f"{setting.metavar} …"
            group.add_argument(setting.flag, metavar=shown, action="append", default=argparse.SUPPRESS, help=text)
        else:
            group.add_argument(setting.flag, metavar=setting.metavar, default=argparse.SUPPRESS, help=text)


def _shown(setting: Setting, default: object) -> str:
    if setting.is_bool:
        return "on" if default else "off"
    if setting.in_bytes and isinstance(default, int) and default >= 1 << 20:
        return f"{default >> 20}MiB"
    if isinstance(default, tuple):
        return ", ".join(default) or "none"
    return f"{default:g}" if isinstance(default, float) else str(default) or "none"


def load(file: str | Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """Flags before environment before file before defaults. Raises ConfigError for the first thing wrong.

    `flags` is what `add_flags` parsed. An empty variable is no value. Relative paths are made absolute.
    """
    values: dict[str, object] = {}
    known = settings()
    for given in (*_from_file(file), *_from_environment(environ), *_from_flags(flags)):
        if given.name not in known:
            raise ConfigError(f"{given.source}: unknown setting{_hint(given, known)}")
        values[given.name] = _convert(given, known[given.name])
    config = Config(**values)  # type: ignore[arg-type]  # each value was converted to its field's type
    paths = {name: value for name in PATHS if (value := getattr(config, name))}
    absolute = {name: str(Path(value).expanduser().absolute()) for name, value in paths.items()}
    config = msgspec.structs.replace(config, **absolute)
    for name in known:
        value = getattr(config, name)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and _UNREAD.search(text):
                raise ConfigError(f"{name}: expected UTF-8 text, not {text!a}")
    _check_names(config)
    return config


def _check_names(config: Config) -> None:
    """A request can mean one model alone by a name. Raises ConfigError."""
    models = config.models
    try:
        by_id(models)
    except ValueError as error:
        raise ConfigError(f"whisper_model, llm_model, embedding_model: {error}") from error
    if both := by_id(config.llm_model).keys() & by_id(config.embedding_model).keys():
        raise ConfigError(
            f"embedding_model: {min(both)!r} is an llm_model too; requests for embeddings can name it as such"
        )
    try:
        by_alias(config.model_alias, models)
    except ValueError as error:
        raise ConfigError(f"model_alias: {error}") from error


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
    shown = "what is there" if setting.secret else f"{value!r}"
    if isinstance(value, str) and setting.in_bytes:
        value = _bytes(value)
    elif isinstance(value, str) and setting.is_bool and not given.typed:
        value = _BOOLEANS.get(value.lower(), value)
    elif setting.is_list:
        value = _several(given)
        if setting.secret and value == [] != given.value:
            # An unset variable in somebody's script must not open the service, nor hide the keys of another source.
            raise ConfigError(f"{given.source}: expected a key, not an empty text")
    try:
        converted: object = msgspec.convert(value, setting.type, strict=given.typed)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{given.source}: expected {_allowed(setting)}, not {shown}") from error
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ConfigError(f"{given.source}: expected {_allowed(setting)}, not {shown}")
    return converted


def _several(given: _Given) -> object:
    """Of a file one text or a list, of a flag each time it was given, of a variable what commas part. Empty: none."""
    if isinstance(given.value, str):
        parts = [given.value] if given.typed or not given.source.startswith(PREFIX) else given.value.split(",")
    elif isinstance(given.value, list):
        parts = given.value
    else:
        return given.value
    return [part for part in (part.strip() if isinstance(part, str) else part for part in parts) if part != ""]


def _bytes(text: str) -> object:
    """`200MiB`, `1 GiB` and `4096` as a number; anything else as it was, for the conversion to refuse."""
    found = re.fullmatch(r"(\d+)\s*([KMG]iB|B)?", text, re.IGNORECASE)
    return int(found[1]) * _SIZES[(found[2] or "b").lower()] if found else text


def _allowed(setting: Setting) -> str:
    """What a setting takes, in a reader's words; its limits come from its annotation alone."""
    kind, *about = get_args(setting.type)
    if setting.choices:
        return ", ".join(setting.choices)
    if words := named(kind):
        return words
    limits = next((meta for meta in about if isinstance(meta, Meta)), Meta())
    if setting.in_bytes:
        return f"a number of bytes, at least {_shown(setting, limits.ge)}, plain or with KiB, MiB or GiB"
    if setting.is_list:
        return "at least one text" if limits.min_length else "a text or several"
    plain = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")
    if limits.ge is not None and limits.le is not None:
        return f"{plain} from {limits.ge:g} to {limits.le:g}"
    if limits.ge is not None:
        return f"{plain}, at least {limits.ge:g}"
    return plain if limits.gt is None else f"{plain} greater than {limits.gt:g}"
