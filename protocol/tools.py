"""The tools of a conversation: what a model may call, whether it must, and the calls that it makes.

Knows nothing of how a model writes a call: that is between its template and the worker.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the client runs."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}\\Z")]
    description: str | None = None
    parameters: dict[str, Any]
    """A JSON schema of an object."""
    strict: bool = False
    """Arguments that break the schema are no arguments: what cannot be enforced is refused."""

    @property
    def shown(self) -> dict[str, Any]:
        """As templates expect it: OpenAI's form, in the order that models are trained on."""
        told = {"name": self.name} | ({"description": self.description} if self.description is not None else {})
        return {"type": "function", "function": {**told, "parameters": self.parameters}}


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer may call. `choice` none: nothing, and the model is not shown any."""

    offered: tuple[Tool, ...] = ()
    """All that the model is shown; no name twice."""
    choice: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] = ()
    """Those that it may call; empty: all."""
    parallel: bool = True
    """It may make several calls."""

    @property
    def allowed(self) -> tuple[Tool, ...]:
        if self.choice == "none":
            return ()
        return tuple(tool for tool in self.offered if not self.names or tool.name in self.names)


class CallPart(msgspec.Struct, frozen=True):
    """More of one call. The first part of a call has its id and name; the arguments of all, joined, are JSON."""

    index: int
    """Of the call in its choice, from 0."""
    id: str | None = None
    name: str | None = None
    arguments: str = ""
