"""Where a service is, and who answers there. Knows a little HTTP; imports no client library."""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import urllib.parse

STARLING = "another Starling"

PROBE_S = 2.0
"""A service of ours answers within milliseconds, also while it loads."""


def url(host: str, port: int) -> str:
    """How a client on this machine reaches what listens there."""
    if host in ("", "0.0.0.0", "::"):
        host = "127.0.0.1" if host != "::" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def who_answers(service: str) -> str | None:
    """STARLING, "another program", or None when nobody listens. `service` is a URL like `url`'s."""
    parts = urllib.parse.urlsplit(service)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=PROBE_S)
    # /health needs no key, and no other server is likely to say this and to echo a request's id.
    mark = f"probe-{secrets.token_hex(4)}"
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/health", headers={"x-request-id": mark})
        answer = connection.getresponse()
        ours = answer.getheader("x-request-id") == mark and json.loads(answer.read(1000)) == {"status": "ok"}
    except (ConnectionRefusedError, socket.gaierror):
        return None
    except (OSError, ValueError, http.client.HTTPException):
        return "another program"
    finally:
        connection.close()
    return STARLING if ours else "another program"
