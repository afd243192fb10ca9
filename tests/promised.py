"""Whether an answer is one that /openapi.json promises: status, headers, media type and body, no member more.

Every request that tests/asgi.py makes of a whole service is looked at, so that the document says what the service does.
"""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from typing import Any

import jsonschema
from starlette.routing import compile_path

from service.api import ROUTES
from service.openapi.document import HEADERS, PATH_PART, Document

Schema = dict[str, Any]


@cache
def document() -> Schema:
    tree: Schema = json.loads(Document(ROUTES).json)
    return tree


@cache
def _components() -> Schema:
    """Those of the document, whose objects have no member that they do not name."""
    components = deepcopy(document()["components"])
    for schema in components["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return {"schemas": components["schemas"]}


def operation(method: str, path: str) -> Schema | None:
    """What the document says of the route that a request finds; None where there is none."""
    for each in ROUTES:
        if each.method == method and compile_path(each.path)[0].match(path):
            found: Schema = document()["paths"][PATH_PART.sub(r"{\1}", each.path)][method.lower()]
            return found
    return None


def check(method: str, path: str, status: int, headers: dict[str, str], body: bytes) -> None:
    """Raises AssertionError. A HEAD is the GET, its body left aside."""
    known = operation("GET" if method == "HEAD" else method, path)
    if known is None:
        assert status in (204, 400, 401, 403, 404, 405, 429)
        return
    where = f"{method} {path}: {status}"
    if status == 405:
        return
    assert str(status) in known["responses"], f"{where} is not promised"
    answer = known["responses"][str(status)]
    unknown = {name for name in headers if name in HEADERS} - set(answer["headers"])
    assert not unknown, f"{where} promises no header {unknown}"
    if status == 204:
        assert body == b""
    if method == "HEAD" or status == 204:
        return  # The server drops what comes of a HEAD.
    media_type = headers["content-type"].partition(";")[0]
    assert media_type in answer["content"], f"{where} promises no {media_type}"
    media = answer["content"][media_type]
    if media_type == "application/json":
        told = json.loads(body)
        _fits(told, media["schema"], where)
        if "x-starling-codes" in answer and "code" in told["error"]:
            assert told["error"]["code"] in answer["x-starling-codes"], f"{where} promises no {told['error']}"
    elif media_type == "text/event-stream":
        for line in body.decode().splitlines():
            if line.startswith("data: ") and line != "data: [DONE]":
                data = media["schema"]["properties"]["data"]
                events = data["anyOf"][0] if "anyOf" in data else data
                _fits(json.loads(line.removeprefix("data: ")), events["contentSchema"], where)


def _fits(told: Any, schema: Schema, where: str) -> None:
    validator = jsonschema.Draft202012Validator({**schema, "components": _components()})
    for error in validator.iter_errors(told):
        best = jsonschema.exceptions.best_match([error])
        raise AssertionError(f"{where}: {'.'.join(map(str, best.absolute_path))}: {best.message[:500]}")
