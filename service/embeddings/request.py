"""The typed request for embeddings: its fields, their limits and defaults.

Knows what a client may ask; knows neither how it was sent nor who does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.errors import InvalidValue
from protocol.jobs import Embed
from service import forms
from service.chat import typed
from service.chat.naming import Names

MOST_INPUTS = 2048
"""OpenAI's limit."""


class Unheeded(msgspec.Struct, frozen=True):
    """It only steers a hosted service."""

    user: str | None = None


ALLOWED = "a string, a list of strings, a list of tokens or a list of lists of tokens, none of them empty"


class EmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings."""

    input: Annotated[str | tuple[str | int | tuple[int, ...], ...], Meta(description=ALLOWED)]
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    """The first so many numbers of each vector; none: all."""
    adapter: str = ""

    @property
    def inputs(self) -> tuple[str | tuple[int, ...], ...]:
        """Each of them by itself. Raises InvalidValue."""
        match self.input:
            case str() if self.input:
                return (self.input,)
            case (int(), *_) if all(isinstance(token, int) for token in self.input):
                return (self.input,)  # type: ignore[return-value]  # The guard has looked at each.
            case (str(), *_) if all(isinstance(text, str) and text for text in self.input):
                return self.input  # type: ignore[return-value]
            case (tuple(), *_) if all(isinstance(tokens, tuple) and tokens for tokens in self.input):
                return self.input  # type: ignore[return-value]
        place, value = self._wrong
        raise forms.wrong(place, value, ALLOWED)

    @property
    def _wrong(self) -> tuple[str, object]:
        """Where there is nothing, or something of another type than before; and what is there."""
        if isinstance(self.input, tuple) and self.input:
            first = type(self.input[0])
            for place, each in enumerate(self.input):
                if type(each) is not first or each in ("", ()):
                    return f"input[{place}]", each
        return "input", self.input

    @property
    def names(self) -> Names:
        """What the job's names for its inputs are here."""
        single = isinstance(self.input, str) or isinstance(self.input[0], int)
        return (("input[0]", "input"),) if single else ()

    def job(self, client: str) -> Embed:
        """Raises InvalidValue."""
        inputs = self.inputs
        if len(inputs) > MOST_INPUTS:
            raise InvalidValue(f"input must hold at most {MOST_INPUTS} texts, not {len(inputs)}", param="input")
        return Embed(inputs, self.dimensions, client, self.adapter)


def read(members: Mapping[str, Any]) -> tuple[EmbeddingsRequest, list[str]]:
    """The checked request, and the names of unknown fields. Raises MissingField and InvalidValue."""
    return typed.decode(EmbeddingsRequest, members, Unheeded)
