"""Who is let in: keys, hosts, origins; and what a browser is told. SEC-01 and SEC-02."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request

from protocol.errors import ForbiddenHost, InvalidApiKey
from service import client
from service.access import Rules
from service.config import Config
from tests.asgi import FORM, Reply, ask, multipart, opened
from tests.scripted import WAV, Scripted, scripted

EVIL = "https://evil.example"
APP = "http://localhost:3000"
KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    with scripted(tmp_path_factory.mktemp("plain")) as service:
        yield service


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """With keys, and with an origin that is let in."""
    with scripted(tmp_path_factory.mktemp("keyed"), api_key=KEYS, cors_origin=(f"{APP}/",)) as service:
        yield service


def get(service: Scripted, path: str = "/v1", method: str = "GET", headers: Any = None) -> Reply:
    return ask(service.app, method, path, headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer  second-key "},
        {"x-api-key": "second-key"},
        {"authorization": "Bearer nonsense", "x-api-key": "first-key"},
    ],
)
def test_any_of_the_keys_lets_in(keyed: Scripted, headers: dict[str, str]) -> None:
    assert get(keyed, headers=headers).status == 200


@pytest.mark.parametrize(
    ("headers", "begins"),
    [
        ({}, "no API key came"),
        ({"authorization": "Bearer "}, "no API key came"),
        ({"authorization": "first-key"}, "no API key came"),
        ({"authorization": "Basic first-key"}, "no API key came"),
        ({"authorization": "Bearer first-ke"}, "the API key is none"),
        ({"authorization": "Bearer first-key, second-key"}, "the API key is none"),
        ({"x-api-key": "FIRST-KEY"}, "the API key is none"),
        ({"x-api-key": "ü"}, "the API key is none"),
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(keyed: Scripted, headers: dict[str, str], begins: str) -> None:
    reply = get(keyed, headers=headers)
    assert reply.error == (401, "invalid_api_key", None)
    assert reply.json["error"]["type"] == "authentication_error"
    assert reply.json["error"]["message"].startswith(begins)
    assert "key," not in reply.text and "first" not in reply.text.lower()
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.headers["x-request-id"]


def test_anthropics_clients_are_refused_in_their_own_words(keyed: Scripted) -> None:
    reply = get(keyed, "/v1/messages", "POST")
    assert (reply.status, reply.json["type"], reply.json["error"]["type"]) == (401, "error", "authentication_error")


@pytest.mark.parametrize("path", ["/ready", "/stats", "/v1/models", "/nothing", "/health/x", "//health"])
def test_every_route_but_health_needs_the_key(keyed: Scripted, path: str) -> None:
    assert get(keyed, path).error == (401, "invalid_api_key", None)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_health_needs_no_key(keyed: Scripted, method: str) -> None:
    assert get(keyed, "/health", method).status == 200


def test_no_key_reaches_the_log_or_the_statistics(keyed: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good, bad = {"authorization": "Bearer first-key"}, {"x-api-key": "my-wrong-key"}
    stats = get(keyed, "/stats", headers=good).text
    get(keyed, "/stats", headers=bad)
    assert not [key for key in (*KEYS, "my-wrong-key") if key in stats or key in caplog.text]
    assert "first-key" not in repr(Config(api_key=KEYS))


def test_nothing_is_read_before_the_key_is_known(keyed: Scripted) -> None:
    async def main() -> None:
        async with opened(keyed.app, "POST", "/v1/audio/transcriptions", FORM) as exchange:
            await exchange.answered.wait()
            assert exchange.sent[0]["status"] == 401
            exchange.send(multipart([("file", WAV, "a.wav")]), more=False)

    asyncio.run(main())
    assert keyed.media.jobs == []


@pytest.mark.parametrize(
    ("headers", "who"),
    [
        ({"x-api-key": "second-key", "x-starling-client": "editor"}, "key-2"),
        ({"x-starling-client": "editor"}, "editor"),
        ({}, "127.0.0.1:1"),
    ],
)
def test_a_client_is_its_key_else_its_name_else_its_connection(headers: dict[str, str], who: str) -> None:
    scope: dict[str, Any] = {"type": "http", "headers": [], "client": ("127.0.0.1", 1)}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request(scope)
    holder = Rules.of(Config(api_key=KEYS)).holder(request.headers) if "x-api-key" in headers else None
    if holder is not None:
        client.known_by(scope, holder)
    assert client.name(request) == who


LOCAL_HOSTS = ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080", "[::1]:8080", "127.0.0.1", "localhost"]
FOREIGN_HOSTS = [
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example",
    "0.0.0.0:8080",
    "localhost:8080@evil.example",
    "",
    "127.0.0.1:8080, evil.example",
    "127.0.0.1:x",
]


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_loopback_names_are_ours(plain: Scripted, host: str) -> None:
    assert get(plain, headers={"host": host}).status == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_foreign_host_is_refused_on_every_route(plain: Scripted, host: str) -> None:
    """SEC-01"""
    for method, path in (("GET", "/health"), ("OPTIONS", "/v1"), ("POST", "/v1/audio/sessions"), ("GET", "/x")):
        reply = get(plain, path, method, {"host": host})
        assert reply.error == (403, "forbidden_host", None)
        assert reply.json["error"]["type"] == "permission_error"


@pytest.mark.parametrize("given", [[], ["localhost", "localhost"]])
def test_no_host_or_two_are_foreign(given: list[str]) -> None:
    with pytest.raises(ForbiddenHost):
        Rules().check_host(given, "127.0.0.1")


@pytest.mark.parametrize(
    ("config", "host", "local"),
    [
        (Config(allowed_host=("Mac.local",)), "mac.local:8080", "127.0.0.1"),
        (Config(host="studio"), "studio:8080", "10.0.0.2"),
        (Config(host="0.0.0.0"), "10.0.0.2:8080", "10.0.0.2"),
        (Config(host="::"), "[fd00::1]:8080", "fd00::1"),
        (Config(host="::"), "10.0.0.2:8080", "10.0.0.2"),
        (Config(allowed_host=("*",)), "evil.example", "127.0.0.1"),
        (Config(), "evil.example", None),
    ],
)
def test_configured_names_the_bound_address_and_unix_sockets_are_ours(
    config: Config, host: str, local: str | None
) -> None:
    Rules.of(config).check_host([host], local)


@pytest.mark.parametrize(
    ("told", "sent"),
    [
        ("https://app.example:443", "https://app.example"),
        ("http://App.example:80/", "http://app.example"),
        ("https://app.example:80", "https://app.example:80"),
    ],
)
def test_an_origin_is_known_with_the_port_that_its_scheme_implies(told: str, sent: str) -> None:
    headers = Headers({"origin": sent, "host": "localhost:8080"})
    assert Rules.of(Config(cors_origin=(told,))).check_origin(headers) == sent


def test_a_wildcard_address_is_no_name() -> None:
    with pytest.raises(ForbiddenHost):
        Rules.of(Config(host="0.0.0.0")).check_host(["0.0.0.0:8080"], "10.0.0.2")


@pytest.mark.parametrize("origin", [EVIL, "null", APP, "http://127.0.0.1:1", "http://127.0.0.1.evil.example", ""])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_foreign_page_is_refused_and_told_nothing(plain: Scripted, origin: str, method: str) -> None:
    """SEC-02: preflights, simple requests and forms."""
    wanted = {"origin": origin, "access-control-request-method": "POST"}
    reply = get(plain, "/v1/audio/sessions", method, headers={**wanted, "content-type": "text/plain"})
    assert reply.error == (403, "forbidden_origin", None)
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_foreign_page_embeds_is_refused_and_a_link_is_not(plain: Scripted, site: str) -> None:
    embedded = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
    assert get(plain, headers=embedded).error == (403, "forbidden_origin", None)
    assert get(plain, headers={**embedded, "sec-fetch-mode": "navigate"}).status == 200


def test_a_page_of_ours_is_no_foreign_one(plain: Scripted) -> None:
    reply = get(plain, headers={"host": "localhost:8080", "origin": "http://localhost:8080"})
    assert (reply.status, "access-control-allow-origin" in reply.headers) == (200, False)


def test_text_that_is_json_inside_is_refused_without_an_origin_too(plain: Scripted) -> None:
    """SEC-02"""
    reply = ask(plain.app, "POST", "/v1/audio/sessions", {"content-type": "text/plain"}, b"{}")
    assert reply.error == (415, "unsupported_media_type", None)


def test_an_allowed_origin_passes_its_preflight_without_the_key(keyed: Scripted) -> None:
    wanted = {
        "origin": APP,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
        "access-control-request-private-network": "true",
    }
    reply = get(keyed, "/v1/chat/completions", "OPTIONS", headers=wanted)
    assert (reply.status, reply.body) == (204, b"")
    told = {name: value for name, value in reply.headers.items() if name.startswith("access-control-allow")}
    assert told == {
        "access-control-allow-origin": APP,
        "access-control-allow-methods": "DELETE, GET, HEAD, OPTIONS, POST",
        "access-control-allow-headers": "authorization,content-type,x-stainless-os",
        "access-control-allow-private-network": "true",
    }
    assert "Origin" in reply.headers["vary"]


@pytest.mark.parametrize(("path", "status"), [("/v1", 200), ("/nothing", 404), ("/stats", 401)])
def test_an_allowed_origin_may_read_answers_and_refusals(keyed: Scripted, path: str, status: int) -> None:
    headers = {"origin": APP} | ({} if status == 401 else {"authorization": "Bearer first-key"})
    reply = get(keyed, path, headers=headers)
    assert reply.status == status
    assert (reply.headers["access-control-allow-origin"], reply.headers["vary"]) == (APP, "Origin")
    assert "x-request-id" in reply.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in reply.headers


def test_all_origins_are_let_in_by_a_star_alone(tmp_path: Path) -> None:
    with scripted(tmp_path, cors_origin=("*",)) as service:
        reply = get(service, headers={"origin": EVIL})
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "*")


def test_an_allowed_page_sends_a_form_and_a_foreign_one_does_not(keyed: Scripted) -> None:
    form = {**FORM, "x-api-key": "first-key"}
    body = multipart([("file", WAV, "a.wav")])
    for origin, status in ((APP, 200), (EVIL, 403)):
        assert ask(keyed.app, "POST", "/v1/audio/transcriptions", {**form, "origin": origin}, body).status == status


def test_too_many_headers_are_refused(plain: Scripted) -> None:
    reply = get(plain, headers={f"x-{number}": "1" for number in range(101)})
    assert reply.error == (400, "invalid_request", None)
    assert "headers; 100 are allowed" in reply.json["error"]["message"]
    reply = get(plain, headers={f"x-{number}": "1" * 1000 for number in range(17)})
    assert "bytes; 16384 are allowed" in reply.json["error"]["message"]


def test_keys_are_compared_whole() -> None:
    rules = Rules.of(Config(api_key=("a",)))
    with pytest.raises(InvalidApiKey):
        rules.holder(Request({"type": "http", "headers": [(b"x-api-key", b"")]}).headers)
