"""A request's body, whichever way it was sent: a recording into the spool, the rest as fields.

Knows content types and size limits; knows neither what the fields mean nor what is in the recording.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from protocol.errors import (
    InvalidRequest,
    InvalidValue,
    MissingField,
    PayloadTooLarge,
    RequestCancelled,
    RequestTimeout,
    UnsupportedMediaType,
)
from service.forms import Entry, Given, kind_of
from service.multipart import FILE, Form
from service.spool import SpoolFile


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a client may send, in bytes, and for how many seconds it may send nothing."""

    multipart_bytes: int
    json_bytes: int
    idle_s: float


FORM = b"multipart/form-data"
JSON = b"application/json"

_BASE64_STEP = 1 << 20
"""Characters decoded at once; a multiple of four."""

_PLACE = re.compile(" - at `.*")
"""The path that msgspec adds: in its own notation, and without the names of members."""

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


async def read(request: Request, upload: SpoolFile, limits: Limits) -> Given:
    """Read the whole body: its recording into `upload`, its fields returned.

    Raises UnsupportedMediaType, PayloadTooLarge, InvalidRequest and its children, DiskFull, RequestTimeout when
    nothing comes for a while, and RequestCancelled when the client leaves.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind == FORM:
        return await _read_form(_chunks(request, limits.multipart_bytes, limits.idle_s), _boundary(options), upload)
    if kind == JSON:
        body = await read_bytes(request, limits.json_bytes, limits.idle_s)
        # Tens of megabytes: other requests go on meanwhile.
        return await asyncio.to_thread(_from_json, body, upload)
    named = kind.decode("latin-1")[:100]
    raise UnsupportedMediaType(f"Content-Type must be multipart/form-data or application/json, not {named!r}")


async def read_fields(request: Request, limit: int, idle_s: float) -> Given:
    """The fields of a JSON object of at most `limit` bytes; none of an empty body. Raises as `read` does."""
    body = await read_bytes(request, limit, idle_s)
    kind, _ = parse_options_header(request.headers.get("content-type"))
    if body and kind != JSON:
        raise UnsupportedMediaType(f"Content-Type must be application/json, not {kind.decode('latin-1')[:100]!r}")
    return _given(await asyncio.to_thread(_members, body)) if body else Given((), form=False)


async def read_file(request: Request, upload: SpoolFile, limit: int, idle_s: float) -> None:
    """A recording that is the body itself or the one file of a form, into `upload`. Raises as `read` does."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    chunks = _chunks(request, limit, idle_s)
    if kind == FORM:
        await _read_form(chunks, _boundary(options), upload)
        return
    async with aclosing(chunks):
        async for chunk in chunks:
            upload.write(chunk)


async def read_bytes(request: Request, limit: int, idle_s: float) -> bytearray:
    """The whole body, of at most `limit` bytes. Raises as `read` does."""
    body = bytearray()
    async with aclosing(_chunks(request, limit, idle_s)) as chunks:
        async for chunk in chunks:
            body += chunk
    return body


async def skip(request: Request, limit: int, idle_s: float) -> None:
    """Let a body pass that nobody wants. Raises as `read` does."""
    async with aclosing(_chunks(request, limit, idle_s)) as chunks:
        async for _ in chunks:
            pass


def _boundary(options: Mapping[bytes, bytes]) -> bytes:
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise InvalidRequest("Content-Type multipart/form-data names no boundary")
    return boundary


async def _chunks(request: Request, limit: int, idle_s: float) -> AsyncGenerator[bytes, None]:
    """The body as it comes. Over `limit` bytes it is refused by its Content-Length, or as soon as they are counted."""
    if request.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("a compressed body is not supported; send it without Content-Encoding")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(limit)
    counted = 0
    more = True
    while more:
        try:
            async with asyncio.timeout(idle_s):
                message = await request.receive()
        except TimeoutError:
            raise RequestTimeout(f"no part of the body came for {idle_s:g} seconds") from None
        if message["type"] == "http.disconnect":
            raise RequestCancelled("the client left while it sent its request")
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        counted += len(chunk)
        if counted > limit:
            raise _too_large(limit)
        if chunk:
            yield chunk


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than the {limit} bytes that are allowed")


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
    except (msgspec.DecodeError, RecursionError) as error:
        if (param := _halved(body)) is not None:
            raise InvalidValue(f"{param} is no valid Unicode: it has half a surrogate pair", param=param) from None
        raise InvalidRequest(f"the body is no valid JSON: {_PLACE.sub('', str(error))}") from None
    if not isinstance(members, dict):
        raise InvalidRequest("the body must be a JSON object")
    return members


def _halved(body: bytearray) -> str | None:
    """The member with half a surrogate pair: the one fault that msgspec calls by other names."""
    try:
        for name, value in json.loads(body).items():
            json.dumps([name, value], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return str(name)
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
