"""The forms that words of settings have, and what each is called where another came. Knows no setting."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

Word = Annotated[str, Meta(pattern=r"^[!-+\--~]+\Z")]
"""Visible ASCII without a comma, which stands between several of them."""
Words = tuple[Word, ...]

_NAME = r"[A-Za-z0-9_.-]{1,253}"
_IPV6 = r"\[?[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*\]?"

Host = Annotated[str, Meta(pattern=rf"^(\*|{_NAME}|{_IPV6})\Z")]
"""As a Host header has it in front of the port, which may be any."""
Hosts = tuple[Host, ...]

Origin = Annotated[str, Meta(pattern=rf"^(\*|null|[A-Za-z][A-Za-z0-9+.-]*://({_NAME}|{_IPV6})?(:[0-9]{{1,5}})?/?)\Z")]
"""As browsers send it. A page that was opened from a file has none, or `null`."""
Origins = tuple[Origin, ...]


def named(kind: Any) -> str | None:
    """What one of these types takes, in a reader's words; None of any other type."""
    known = (
        (Words, "words of visible ASCII"),
        (Hosts, "names or addresses without scheme, port and path, or *"),
        (Origins, "origins such as https://app.example:8443, without path, or *"),
    )
    return next((words for each, words in known if each == kind), None)
