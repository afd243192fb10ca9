"""GET /docs: one page that shows /openapi.json and needs no network. Knows where the page lies."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

PAGE = Path(__file__).with_name("page.html")
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def html() -> str:
    return PAGE.read_text("utf-8")


def policy() -> str:
    """The Content-Security-Policy under which the page does what it does and nothing else: its own script and style,
    by their hashes, and the document of this very server."""
    allowed = {"script": "", "style": ""}
    for kind, text in _INLINE.findall(html()):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed[kind] += f" 'sha256-{digest}'"
    return (
        f"default-src 'none'; script-src{allowed['script']}; style-src{allowed['style']}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
