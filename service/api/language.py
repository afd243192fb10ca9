"""What all routes to the language model do alike: read the body, find the model, begin a stream.

Knows the order of that work; knows no protocol.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from starlette.requests import Request

from protocol.errors import Kind
from protocol.jobs import Chat
from service import client, reply, upload
from service.chat.naming import Names, renaming
from service.contract import BODY, MODEL, WORK, Parameter
from service.headers import only
from service.house import House
from service.sse import EventStream, Message, Told, failed
from service.worker import Worker

T = TypeVar("T")

GROUP = "Language model"
FAILURES = (
    *BODY,
    *MODEL,
    *WORK,
    Kind.UNSUPPORTED_VALUE,
    Kind.UNSUPPORTED_CONTENT,
    Kind.UNSUPPORTED_SCHEMA,
    Kind.CONTEXT_LENGTH_EXCEEDED,
    Kind.UNKNOWN_ADAPTER,
)
PARAMETERS = (
    Parameter("x-starling-client", "header", str, "Whose request it is: the model is fair among clients."),
    Parameter("x-starling-trace", "header", Literal["1"], "Log where its time goes (only with --allow-trace)."),
)


@dataclass(frozen=True)
class Asking:
    """A request whose body is there."""

    request: Request
    members: Mapping[str, Any]
    """Of the body."""
    client: str
    trace: bool
    began: float
    """perf_counter at the end of the body."""


async def read(house: House, request: Request) -> Asking:
    """Raises what is wrong with the body as such."""
    given = await upload.read_fields(request, house.config.max_json_bytes, upload.Pace.of(house.config))
    began = time.perf_counter()
    members = {entry.name: entry.value for entry in given.entries}
    trace = house.config.allow_trace and only(request.headers, "x-starling-trace") == "1"
    return Asking(request, members, client.name(request), trace, began)


async def checked(house: House, parse: Callable[[], tuple[T, str]]) -> tuple[T, str, Worker]:
    """What `parse` makes of a request, whose second part is the name of a model; the id of the model that serves it,
    and its worker. Raises what `parse` does and what the catalog says of the name."""

    def work() -> tuple[T, str]:
        made, name = parse()
        return made, house.catalog.resolve_llm(name)

    # A long conversation is megabytes to look at, and the name of a model may be looked up on disk.
    made, model = await asyncio.to_thread(work)
    return made, model, house.workers.language[model]


async def generating(llm: Worker, job: Chat, names: Names) -> AsyncGenerator[reply.Generating, None]:
    """As `reply.generating`, of one job; what the worker refuses is named as the request's protocol names it."""
    with renaming(names):
        async with aclosing(reply.generating(llm, (job,))) as events:
            async for event in events:
                yield event


async def streamed(
    house: House,
    request: Request,
    told: AsyncGenerator[Message, None],
    headers: Mapping[str, str],
    failing: Told = failed,
) -> EventStream:
    """The first message is awaited, so that what is refused keeps its status. Raises it."""
    first = await reply.unless_gone(request, _first(told))
    config = house.config
    return EventStream(
        first, told, ExitStack(), headers, keepalive_s=config.keepalive_s, unread_s=config.unread_s, failing=failing
    )


async def exhausted(messages: AsyncGenerator[Message, None]) -> None:
    """To the end of a stream that nobody is told of."""
    async with aclosing(messages):
        async for _ in messages:
            pass


async def _first(told: AsyncGenerator[Message, None]) -> Message:
    return await anext(told)
