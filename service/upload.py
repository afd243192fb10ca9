"""A request's body, whichever way it was sent: a recording into the spool, the rest as fields.

Knows content types and size limits; knows neither what the fields mean nor what is in the recording.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Self

import msgspec
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from protocol.errors import (
    InvalidRequest,
    InvalidValue,
    MissingField,
    PayloadTooLarge,
    RequestTimeout,
    UnsupportedMediaType,
)
from service import forms
from service.closing import departure
from service.config import Config
from service.forms import Entry, Given, kind_of
from service.multipart import FILE, Form
from service.spool import SpoolFile


class Pace(msgspec.Struct, frozen=True):
    """How slowly a client may send: with pauses, and slower than any network, but not to hold a place for ever."""

    idle_s: float
    """It may send nothing for so long."""
    least_rate: int
    """Bytes a second, on average and beyond the first `idle_s`. 0: any."""

    @classmethod
    def of(cls, config: Config) -> Self:
        return cls(config.upload_idle_s, config.upload_rate_bytes)

    def patience(self, spent_s: float, counted: int) -> float:
        """Seconds for which more is waited for, once `counted` bytes have come in `spent_s`."""
        if not self.least_rate:
            return self.idle_s
        return min(self.idle_s, self.idle_s + counted / self.least_rate - spent_s)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a client may send, in bytes, and how slowly."""

    multipart_bytes: int
    json_bytes: int
    pace: Pace


FORM = b"multipart/form-data"
JSON = b"application/json"

MAX_DEPTH = 128
"""Lists and objects in each other. Schemas of tools have some ten; whatever walks a body needs a frame for each."""

_SOON = 64 << 10
"""Bytes of JSON that are read while others wait."""

_BASE64_STEP = 1 << 20
"""Characters decoded at once; a multiple of four."""

_PLACE = re.compile(" - at `.*")
"""The path that msgspec adds: in its own notation, and without the names of members."""

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


async def read(request: Request, upload: SpoolFile, limits: Limits) -> Given:
    """Read the whole body: its recording into `upload`, its fields returned.

    Raises UnsupportedMediaType, PayloadTooLarge, InvalidRequest and its children, DiskFull, RequestTimeout when
    nothing comes for a while, and RequestCancelled when the client leaves or ShuttingDown when the service ends.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind == FORM:
        return await _read_form(_chunks(request, limits.multipart_bytes, limits.pace), _boundary(options), upload)
    if kind == JSON:
        body = await read_bytes(request, limits.json_bytes, limits.pace)
        # Tens of megabytes: other requests go on meanwhile.
        return await asyncio.to_thread(_from_json, body, upload)
    named = kind.decode("latin-1")[:100]
    raise UnsupportedMediaType(f"Content-Type must be multipart/form-data or application/json, not {named!r}")


async def read_fields(request: Request, limit: int, pace: Pace) -> Given:
    """The fields of a JSON object of at most `limit` bytes; none of an empty body. Raises as `read` does."""
    body = await read_bytes(request, limit, pace)
    kind, _ = parse_options_header(request.headers.get("content-type"))
    if body and kind != JSON:
        raise UnsupportedMediaType(f"Content-Type must be application/json, not {kind.decode('latin-1')[:100]!r}")
    if not body:
        return Given((), form=False)
    # A few kilobytes are read sooner than a thread has its turn.
    members = await asyncio.to_thread(_members, body) if len(body) > _SOON else _members(body)
    return _given(members)


async def read_file(request: Request, upload: SpoolFile, limit: int, pace: Pace) -> None:
    """A recording that is the body itself or the one file of a form, into `upload`. Raises as `read` does."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    chunks = _chunks(request, limit, pace)
    if kind == FORM:
        await _read_form(chunks, _boundary(options), upload)
        return
    async with aclosing(chunks):
        async for chunk in chunks:
            upload.write(chunk)


async def read_bytes(request: Request, limit: int, pace: Pace) -> bytearray:
    """The whole body, of at most `limit` bytes. Raises as `read` does."""
    body = bytearray()
    async with aclosing(_chunks(request, limit, pace)) as chunks:
        async for chunk in chunks:
            body += chunk
    return body


async def skip(request: Request, limit: int, pace: Pace) -> None:
    """Let a body pass that nobody wants. Raises as `read` does."""
    async with aclosing(_chunks(request, limit, pace)) as chunks:
        async for _ in chunks:
            pass


def _boundary(options: Mapping[bytes, bytes]) -> bytes:
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise InvalidRequest("Content-Type multipart/form-data names no boundary")
    return boundary


async def _chunks(request: Request, limit: int, pace: Pace) -> AsyncGenerator[bytes, None]:
    """The body as it comes. Over `limit` bytes it is refused by its Content-Length, or as soon as they are counted."""
    if request.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("a compressed body is not supported; send it without Content-Encoding")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(limit)
    counted = 0
    more = True
    began = time.monotonic()
    while more:
        try:
            async with asyncio.timeout(pace.patience(time.monotonic() - began, counted)):
                message = await request.receive()
        except TimeoutError:
            raise _too_slow(pace, time.monotonic() - began, counted) from None
        if message["type"] == "http.disconnect":
            raise departure(message, "while it sent its request")
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        counted += len(chunk)
        if counted > limit:
            raise _too_large(limit)
        if chunk:
            yield chunk


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than the {limit} bytes that are allowed")


def _too_slow(pace: Pace, spent_s: float, counted: int) -> RequestTimeout:
    if pace.patience(spent_s, counted) > 0:
        return RequestTimeout(f"no part of the body came for {pace.idle_s:g} seconds")
    return RequestTimeout(f"{counted} bytes came in {spent_s:.0f} seconds; {pace.least_rate} a second are expected")


async def _read_form(chunks: AsyncGenerator[bytes, None], boundary: bytes, upload: SpoolFile) -> Given:
    form = Form(boundary, upload.write)
    async with aclosing(chunks):
        async for chunk in chunks:
            form.feed(chunk)
    form.end()
    return Given(tuple(form.entries), form=True)


def _from_json(body: bytearray, upload: SpoolFile) -> Given:
    members = _members(body)
    body.clear()
    param, encoded = _recording(members)
    _decode_base64(encoded, param, upload)
    return _given(members)


def _members(body: bytearray) -> dict[str, Any]:
    try:
        members = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.DecodeError as error:
        if (param := _halved(body)) is not None:
            raise InvalidValue(f"{param} is no valid Unicode: it has half a surrogate pair", param=param) from None
        raise InvalidRequest(f"the body is no valid JSON: {_PLACE.sub('', str(error))}") from None
    if not isinstance(members, dict):
        raise InvalidRequest("the body must be a JSON object")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deep(members):
        raise _too_deep()
    return members


def _is_deep(members: dict[str, Any]) -> bool:
    level: list[Any] = [members]
    for _ in range(MAX_DEPTH):
        inner = (child for each in level for child in (each.values() if isinstance(each, dict) else each))
        level = [child for child in inner if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"the body nests lists and objects more than {MAX_DEPTH} deep")


def _halved(body: bytearray) -> str | None:
    """The member with half a surrogate pair: the one fault that msgspec calls by other names."""
    try:
        for name, value in json.loads(body).items():
            json.dumps([name, value], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # It is told in an answer, which is UTF-8.
        return str(name).encode(errors="backslashreplace").decode()[: forms.SHOWN]
    except (ValueError, AttributeError, RecursionError):
        return None
    return None


def _given(members: Mapping[str, Any]) -> Given:
    return Given(tuple(Entry(name, value) for name, value in members.items()), form=False)


def _recording(members: dict[str, Any]) -> tuple[str, str]:
    """The recording's field and text, taken out: `file`, else `input_audio.data`, else `audio`."""
    nested = members.pop("input_audio", None)
    found = {
        FILE: members.pop(FILE, None),
        "input_audio": nested.get("data") if isinstance(nested, dict) else nested,
        "audio": members.pop("audio", None),
    }
    for param, value in found.items():
        if value is None or value == "":
            continue
        if not isinstance(value, str):
            raise InvalidValue(f"{param} must be the recording in base64, not {kind_of(value)}", param=param)
        return param, value
    raise MissingField("there is no recording: send it in base64 as `file`", param=FILE)


def _decode_base64(encoded: str, param: str, upload: SpoolFile) -> None:
    """Plain base64 or a data: URL; line breaks are fine, anything else that is not base64 is not."""
    url = _DATA_URL.match(encoded)
    text = "".join(encoded[url.end() if url else 0 :].split())
    try:
        if "=" in text[:-2]:
            raise ValueError("there is padding before its end")
        for start in range(0, len(text), _BASE64_STEP):
            upload.write(binascii.a2b_base64(text[start : start + _BASE64_STEP], strict_mode=True))
    except ValueError as error:
        raise InvalidValue(
            f"{param} must be the recording in base64, plain or as a data: URL: {error}", param=param
        ) from None
