"""How routes answer with JSON. Knows no route."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")
