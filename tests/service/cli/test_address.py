"""Who answers at an address."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from service.cli import address
from tests.service.cli.conftest import Serve


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("localhost", "http://localhost:80"),
    ],
)
def test_a_url_is_one_that_a_client_here_can_use(host: str, url: str) -> None:
    assert address.url(host, 80) == url


@pytest.mark.port
def test_a_starling_is_recognised(serving: Serve) -> None:
    url, _ = serving()
    assert address.who_answers(url) == "another Starling"


@pytest.mark.port
def test_nobody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert address.who_answers(address.url("127.0.0.1", port)) is None


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status":"ok"}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield address.url("127.0.0.1", server.server_port)
        server.shutdown()
        thread.join()


@pytest.mark.port
def test_another_server_is_no_starling_even_if_it_says_ok(other: str) -> None:
    assert address.who_answers(other) == "another program"


@pytest.mark.port
def test_a_program_that_speaks_no_http_is_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "PROBE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert address.who_answers(address.url("127.0.0.1", silent.getsockname()[1])) == "another program"
