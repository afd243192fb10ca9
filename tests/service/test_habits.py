"""What a 404 says of an address that is nearly right."""

from __future__ import annotations

import pytest

from service.api import ROUTES
from service.habits import LIST, hint

PATHS = [each.path for each in ROUTES]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/models", "/v1/models"),
        ("/models/a/b", "/v1/models/a/b"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1//chat/completions", "/v1/chat/completions"),
        ("/v1/", "/v1"),
        ("/health/", "/health"),
        ("/v1/health", None),
        ("/v1/engines", "/v1/models"),
        ("/engines/", "/v1/models"),
        ("/v1/engines/davinci", "/v1/models/davinci"),
        ("/v1/engines/davinci/completions", "/v1/completions"),
        ("/v1/engines/org/model/completions", "/v1/completions"),
        ("/nothing", None),
        ("/", None),
        ("/v1/audio", None),
    ],
)
def test_an_old_habit_is_told_what_is_meant(path: str, meant: str | None) -> None:
    told = hint(path, PATHS)
    assert told.endswith(LIST)
    assert told.removesuffix(LIST).partition(" is probably meant")[0] == (f"; {meant}" if meant else "")


def test_a_base_url_that_is_wrong_is_named() -> None:
    assert "end in /v1" in hint("/audio/transcriptions", PATHS)
    assert "goes without /v1" in hint("/v1/v1/models", PATHS)
    assert "base URL" not in hint("/health/", PATHS)
    assert "base URL" not in hint("/v1/models/x/y/".replace("models", "engines"), PATHS)
