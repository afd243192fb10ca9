"""Who is let in, before anything of a request is read: by Host, Origin and API key. And CORS, for the origins let in.

Knows headers and the one path that is open to all; knows no route and no body.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import Failure, ForbiddenHost, ForbiddenOrigin, InvalidApiKey, InvalidRequest, NotFound
from service import client, errors
from service.config import Config

OPEN = "/health"
"""Needs no key: whoever watches over the service may ask whether it stands."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
WILDCARDS = frozenset({"0.0.0.0", "[::]"})
"""Addresses to listen on that are nobody's name."""
ANY = "*"

MAX_HEADERS = 100
"""Of one request. Browsers send about 20."""
MAX_HEADER_BYTES = 16 << 10
"""Of all of them. Hypercorn has the same limit, but looks only where they have not all come at once."""

METHODS = "DELETE, GET, HEAD, OPTIONS, POST"
PREFLIGHT_S = 600
"""Seconds for which a browser need not ask again."""
EXPOSED = ", ".join(
    (
        "request-id, retry-after, retry-after-ms, x-request-id, x-should-retry",
        "x-starling-duration, x-starling-ignored, x-starling-language, x-starling-model, x-starling-timings",
    )
)
"""Headers of answers that a page of another origin may read."""

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(?::[0-9]{1,5})?")
_TOKENS = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,4000}")


@dataclass(frozen=True)
class Rules:
    """What is configured, ready to be compared with."""

    keys: tuple[bytes, ...] = ()
    """SHA-256 of each key: all of one length, and no key lies about in memory. None: everybody may ask."""
    hosts: frozenset[str] = frozenset(LOOPBACK)
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: Config) -> Self:
        hosts = {_bracketed(host.lower()) for host in (*LOOPBACK, config.host, *config.allowed_host) if host}
        origins = {_as_sent(origin) for origin in config.cors_origin}
        return cls(tuple(_digest(key) for key in config.api_key), frozenset(hosts - WILDCARDS), frozenset(origins))

    def check_host(self, given: list[str], local: str | None) -> None:
        """A page that points its own name at this machine (DNS rebinding) still sends that name as Host.

        `local` is the address at which the connection came in; None for a Unix socket, which no browser opens.
        Raises ForbiddenHost.
        """
        if local is None or ANY in self.hosts:
            return
        told = given[0].lower() if len(given) == 1 else ""
        found = _HOST.fullmatch(told)
        if found is None or (found[1] not in self.hosts and found[1] != _bracketed(local)):
            shown = ", ".join(given)[:100]
            raise ForbiddenHost(f"Host {shown!r} is none of this server's names; --allowed-host adds one")

    def check_origin(self, headers: Headers) -> str | None:
        """The foreign origin that the answer is for and may be read by; None: no browser asks, or a page of ours.

        Raises ForbiddenOrigin, also for what a foreign page's images and scripts fetch without saying an origin.
        """
        given = headers.getlist("origin")
        if not given:
            foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
            if foreign and headers.get("sec-fetch-mode") != "navigate" and ANY not in self.origins:
                raise ForbiddenOrigin("another site's page asks for this; --cors-origin lets origins in")
            return None
        origin = given[0].lower() if len(given) == 1 else ""
        if origin and origin.partition("://")[2] == headers.get("host", "").lower():
            return None
        if ANY in self.origins or origin in self.origins:
            return given[0]
        raise ForbiddenOrigin(f"Origin {', '.join(given)[:100]!r} is not let in; --cors-origin lets it in")

    def holder(self, headers: Headers) -> str | None:
        """A name for the key that the request came with; None where no keys are configured. Raises InvalidApiKey."""
        if not self.keys:
            return None
        given = [_digest(key) for key in _keys(headers)]
        # All are compared, and each in the same time: how long it takes tells nothing about any key.
        found = [
            number for number, known in enumerate(self.keys, 1) for key in given if hmac.compare_digest(known, key)
        ]
        if not found:
            how = "send it as Authorization: Bearer KEY or as x-api-key"
            raise InvalidApiKey(f"the API key is none of this server's; {how}" if given else f"no API key came; {how}")
        return f"key-{found[0]}"


class Access:
    """Wraps an app: refuses whom the rules do not let in, answers preflights, marks answers for pages let in."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin: str | None = None
        try:
            _check_size(headers)
            self._rules.check_host(headers.getlist("host"), _local(scope))
            origin = self._rules.check_origin(headers)
            if origin is not None:
                send = self._readable(origin, send)
                if scope.get("method") == "OPTIONS" and "access-control-request-method" in headers:
                    # It comes without the key: the browser asks whether it may send one.
                    await preflight(headers)(scope, receive, send)
                    return
            if not (scope["path"] == OPEN and scope.get("method") in ("GET", "HEAD", "OPTIONS")):
                holder = self._rules.holder(headers)
                if holder is not None:
                    client.known_by(scope, holder)
            if scope["type"] == "websocket":
                raise NotFound(f"there is no WebSocket at {scope['path'][:100]}; GET /v1 lists what there is")
        except Failure as failure:
            await _refuse(failure, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _readable(self, origin: str, send: Send) -> Send:
        """A page of `origin` may read the answer. Never with credentials: keys travel in a header of their own."""
        shared = ANY in self._rules.origins

        async def marked(message: Message) -> None:
            if message["type"].endswith("http.response.start"):
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers["access-control-allow-origin"] = ANY if shared else origin
                headers["access-control-expose-headers"] = EXPOSED
                if not shared:
                    headers.add_vary_header("Origin")
            await send(message)

        return marked


def _check_size(headers: Headers) -> None:
    """Raises InvalidRequest."""
    if len(headers.raw) > MAX_HEADERS:
        raise InvalidRequest(f"the request has {len(headers.raw)} headers; {MAX_HEADERS} are allowed")
    size = sum(len(name) + len(value) for name, value in headers.raw)
    if size > MAX_HEADER_BYTES:
        raise InvalidRequest(f"the request's headers have {size} bytes; {MAX_HEADER_BYTES} are allowed")


def preflight(headers: Headers) -> Response:
    """What a browser may send to us from an origin that is let in: any method of ours, any header that it names."""
    wanted = headers.get("access-control-request-headers", "")
    told = {
        "access-control-allow-methods": METHODS,
        "access-control-max-age": str(PREFLIGHT_S),
        "vary": "Access-Control-Request-Headers",
    }
    if wanted and _TOKENS.fullmatch(wanted):
        told["access-control-allow-headers"] = wanted
    if headers.get("access-control-request-private-network") == "true":
        told["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=told)


async def _refuse(failure: Failure, scope: Scope, receive: Receive, send: Send) -> None:
    """An answer, to a WebSocket too where the server can give one (ASGI's extension)."""
    if scope["type"] == "websocket" and "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close"})
        return
    await errors.response(failure, path=scope["path"])(scope, receive, send)


def _keys(headers: Headers) -> Iterable[str]:
    for given in headers.getlist("authorization"):
        scheme, _, key = given.partition(" ")
        if scheme.lower() == "bearer" and key.strip():
            yield key.strip()
    yield from (key.strip() for key in headers.getlist("x-api-key") if key.strip())


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()


def _local(scope: Scope) -> str | None:
    """The address at which the connection came in; None for a Unix socket."""
    server = scope.get("server")
    # An IPv4 client of a socket for both families.
    return server[0].lower().removeprefix("::ffff:") if server else None


def _as_sent(origin: str) -> str:
    """As a browser says it: without the port that its scheme implies."""
    scheme, mark, host = origin.lower().rstrip("/").partition("://")
    return scheme + mark + host.removesuffix({"http": ":80", "https": ":443"}.get(scheme, ""))


def _bracketed(host: str) -> str:
    """An IPv6 address as it stands in a URL."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
