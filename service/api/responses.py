"""/v1/responses: OpenAI's newer protocol, over the same engine as a chat, and the responses that are kept.

Knows the order of the work; what a field means, how an answer is written and where it is kept is said in
service/responses.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import Failure, Kind, UnsupportedValue
from protocol.events import GenDefaults
from protocol.jobs import Chat, CountTokens
from service import forms, headers, reply
from service.api import language
from service.api.answers import as_json
from service.api.language import Asking
from service.chat.request import SAID_OTHERWISE
from service.contract import KNOWN, Contract, Outcome, Parameter, Sent, events, json
from service.dialects import Body
from service.house import House
from service.responses import items, rendering, written
from service.responses.items import Item
from service.responses.rendering import Answer, Message
from service.responses.request import NAMES, NOT_HERE, Included, ResponsesRequest, Unheeded, read
from service.responses.store import ResponseStore, Stored
from service.worker import Worker

MOST_LISTED = 100
INCLUDE = Parameter("include", "query", Included, "What there is of it is in the response.")
INCLUDED = get_args(Included)


BODY = Sent(
    "application/json",
    ResponsesRequest,
    hidden=NOT_HERE,
    unheeded=Unheeded,
    members=SAID_OTHERWISE,
    example={"input": "Name three birds that sing."},
)
CREATE = Contract(
    language.GROUP,
    (Outcome("the response, or its stream", (json(written.ResponseObject), events(*written.EVENTS)), headers=KNOWN),),
    failures=(*language.FAILURES, Kind.UNKNOWN_RESPONSE, Kind.DISK_FULL),
    body=(BODY,),
    parameters=language.PARAMETERS,
)
COUNT = Contract(
    language.GROUP,
    (Outcome("the prompt's tokens", (json(written.Counted),), headers=KNOWN),),
    failures=(*language.FAILURES, Kind.UNKNOWN_RESPONSE),
    body=(BODY,),
    parameters=language.PARAMETERS,
)
RETRIEVE = Contract(
    language.GROUP,
    (Outcome("as it was answered", (json(written.ResponseObject),)),),
    failures=(Kind.UNKNOWN_RESPONSE, Kind.UNSUPPORTED_VALUE, Kind.DISK_FULL),
    parameters=(Parameter("stream", "query", Literal["false"], "A response that is kept is whole."), INCLUDE),
)
REMOVE = Contract(
    language.GROUP,
    (Outcome("it is gone", (json(written.Removed),)),),
    failures=(Kind.UNKNOWN_RESPONSE, Kind.DISK_FULL),
)
INPUT_ITEMS = Contract(
    language.GROUP,
    (Outcome("some of them", (json(written.Items),)),),
    failures=(Kind.UNKNOWN_RESPONSE, Kind.INVALID_VALUE, Kind.DISK_FULL),
    parameters=(
        Parameter("limit", "query", Annotated[int, Meta(ge=1, le=MOST_LISTED)], "How many; 20 unless it says."),
        Parameter("order", "query", Literal["asc", "desc"], "desc unless it says."),
        Parameter("after", "query", str, "The id of the item before the first one that is wanted."),
        INCLUDE,
    ),
)


async def create(house: House, request: Request) -> Response:
    asking = await language.read(house, request)
    wanted, model, llm = await language.checked(house, _parser(house.responses, asking))
    id, created = f"resp_{secrets.token_hex(12)}", int(time.time())
    head = rendering.head(wanted.fields, asking.members, id, created, model, _defaults(llm))
    answer = Answer(head, logprobs=wanted.fields.logprobs)
    making = _Making(llm, wanted, answer, house.responses, asking.began)
    told = headers.known(model, wanted.ignored)
    if wanted.fields.stream:
        return await language.streamed(house, request, making.told(), told, answer.error)
    return as_json(await reply.unless_gone(request, making.collected()), headers=told)


async def count(house: House, request: Request) -> Response:
    asking = await language.read(house, request)
    wanted, model, llm = await language.checked(house, _parser(house.responses, asking))
    counted = await reply.unless_gone(request, reply.counted(llm, CountTokens(wanted.job)))
    body = {"object": "response.input_tokens", "input_tokens": counted.tokens}
    return as_json(body, headers=headers.known(model, wanted.ignored))


async def retrieve(house: House, request: Request) -> Response:
    _check_included(request)
    if request.query_params.get("stream", "false") not in ("false", ""):
        raise UnsupportedValue("stream is not supported here: a response that is kept is whole", param="stream")
    stored = await asyncio.to_thread(house.responses.get, request.path_params["id"])
    return as_json(stored.body)


def _check_included(request: Request) -> None:
    """Everything that may be asked for is in what is kept, or is never made. Raises InvalidValue."""
    for name in ("include", "include[]"):
        for value in request.query_params.getlist(name):
            if value not in INCLUDED:
                raise forms.wrong("include", value, f"one of {', '.join(INCLUDED)}")


async def remove(house: House, request: Request) -> Response:
    id = request.path_params["id"]
    await asyncio.to_thread(house.responses.remove, id)
    return as_json({"id": id, "object": "response", "deleted": True})


async def input_items(house: House, request: Request) -> Response:
    """What the client sent with this response, the last first unless `order` is asc."""
    _check_included(request)
    query = request.query_params
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= MOST_LISTED):
        raise forms.wrong("limit", limit, f"a whole number from 1 to {MOST_LISTED}")
    if order not in ("asc", "desc"):
        raise forms.wrong("order", order, "one of asc, desc")
    stored = await asyncio.to_thread(house.responses.get, request.path_params["id"])
    found = list(stored.input if order == "asc" else reversed(stored.input))
    if after := query.get("after"):
        places = [place for place, item in enumerate(found) if item["id"] == after]
        if not places:
            raise forms.wrong("after", after, "the id of one of the response's input items")
        found = found[places[0] + 1 :]
    shown = found[: int(limit)]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return as_json({"object": "list", "data": shown, **ends, "has_more": len(found) > len(shown)})


@dataclass(frozen=True)
class _Wanted:
    """One request, checked."""

    fields: ResponsesRequest
    ignored: list[str]
    job: Chat
    given: tuple[dict[str, Any], ...]
    """Its own input, as items with ids."""
    chain: tuple[str, ...]
    """The responses that it goes on from."""


def _parser(store: ResponseStore, asking: Asking) -> Callable[[], tuple[_Wanted, str]]:
    def parsed() -> tuple[_Wanted, str]:
        fields, ignored = read(asking.members)
        previous = fields.previous_response_id
        chain = store.chain(previous) if previous else ()
        before = [item for stored in chain for item in (*stored.input, *stored.body["output"])]
        given = _given(store, fields, asking.members)
        job = fields.job(asking.client, _typed(before), _typed(given), trace=asking.trace)
        return _Wanted(fields, ignored, job, given, tuple(stored.id for stored in chain)), fields.model

    return parsed


def _given(store: ResponseStore, fields: ResponsesRequest, members: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The input as items, those that it only refers to by their ids taken from the store. Raises UnknownResponse."""
    raw = members.get("input")
    if raw is None or isinstance(raw, str):
        return items.listed(() if raw is None else raw)
    resolved = [
        store.item(items.needed(item, "id", place), param=f"{place}.id") if item.kind == "item_reference" else given
        for place, item, given in zip(map("input[{}]".format, range(len(raw))), fields.items, raw, strict=True)
    ]
    return items.listed(resolved)


def _typed(raw: list[dict[str, Any]] | tuple[dict[str, Any], ...]) -> tuple[Item, ...]:
    return msgspec.convert(raw, tuple[Item, ...])


def _defaults(llm: Worker) -> GenDefaults:
    """As far as the model is known yet."""
    model = llm.ready.model if llm.ready else None
    return (model.gen_defaults if model else None) or GenDefaults()


@dataclass(frozen=True)
class _Making:
    """One response to be. `began`: perf_counter when the request was there."""

    llm: Worker
    wanted: _Wanted
    answer: Answer
    store: ResponseStore
    began: float

    async def collected(self) -> Body:
        await language.exhausted(self._events())
        return self.answer.body

    async def told(self) -> AsyncGenerator[Message, None]:
        """Nothing is told before the prompt is in: until then a refusal has its status."""
        begun = False
        try:
            async with aclosing(self._events()) as told:
                async for message in told:
                    yield message
                    begun = True
        except Failure as failure:
            if begun:
                yield self.answer.failed(failure)
            raise
        yield self.answer.end()

    async def _events(self) -> AsyncGenerator[Message, None]:
        """All but the last one. At their end the response is whole, and kept if that is wanted."""
        async with aclosing(language.generating(self.llm, self.wanted.job, NAMES)) as events:
            async for event in events:
                for message in self.answer.take(event):
                    yield message
        self.answer.finish(int(time.time()), time.perf_counter() - self.began)
        if self.wanted.fields.store:
            body = self.answer.body
            stored = Stored(body["id"], body["previous_response_id"], body, self.wanted.given)
            await asyncio.to_thread(self.store.put, stored, self.wanted.chain)
