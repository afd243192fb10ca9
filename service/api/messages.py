"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol, over the same engine as a chat.

Knows the order of the work; what a field means and how an answer is written is said in service/messages.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from protocol.jobs import Chat, CountTokens
from service import errors, headers, reply
from service.api import language
from service.api.answers import as_json
from service.chat.request import SAID_OTHERWISE
from service.contract import KNOWN, Contract, Outcome, Sent, events, json
from service.dialects import Body
from service.house import House
from service.messages.rendering import Answer, Message
from service.messages.request import (
    NAMES,
    CountRequest,
    MessagesRequest,
    Uncounted,
    Unheeded,
    read_count,
    read_messages,
)
from service.messages.written import EVENTS, AnthropicMessage, Counted
from service.worker import Worker

_EXAMPLE = [{"role": "user", "content": "Name three birds that sing."}]
MESSAGES = Contract(
    language.GROUP,
    (
        Outcome(
            "the whole message, or its stream",
            (json(AnthropicMessage), events(*EVENTS, errors.AnthropicErrorBody)),
            headers=KNOWN,
        ),
    ),
    failures=language.FAILURES,
    body=(
        Sent(
            "application/json",
            MessagesRequest,
            unheeded=Unheeded,
            members=SAID_OTHERWISE,
            example={"max_tokens": 100, "messages": _EXAMPLE},
        ),
    ),
    parameters=language.PARAMETERS,
)
COUNT = Contract(
    language.GROUP,
    (Outcome("the prompt's tokens", (json(Counted),), headers=KNOWN),),
    failures=language.FAILURES,
    body=(
        Sent(
            "application/json",
            CountRequest,
            unheeded=Uncounted,
            members=SAID_OTHERWISE,
            example={"messages": _EXAMPLE},
        ),
    ),
    parameters=language.PARAMETERS,
)


async def messages(house: House, request: Request) -> Response:
    asking = await language.read(house, request)

    def parsed() -> tuple[tuple[MessagesRequest, list[str], Chat], str]:
        fields, ignored = read_messages(asking.members)
        return (fields, ignored, fields.job(asking.client, trace=asking.trace)), fields.model

    (fields, ignored, job), model, llm = await language.checked(house, parsed)
    id = f"msg_{secrets.token_hex(12)}"
    answer = Answer(id, model, max_tokens=fields.max_tokens, shows_thinking=fields.shows_thinking)
    generating = _Generating(llm, job, answer, asking.began)
    told = headers.known(model, ignored)
    if fields.stream:
        return await language.streamed(house, request, generating.told(), told, errors.body_for_anthropic)
    body = await reply.unless_gone(request, generating.collected())
    return as_json(body, headers=told)


async def count_tokens(house: House, request: Request) -> Response:
    asking = await language.read(house, request)

    def parsed() -> tuple[tuple[list[str], Chat], str]:
        fields, ignored = read_count(asking.members)
        return (ignored, fields.job(asking.client, trace=False)), fields.model

    (ignored, job), model, llm = await language.checked(house, parsed)
    counted = await reply.unless_gone(request, reply.counted(llm, CountTokens(job)))
    return as_json({"input_tokens": counted.tokens}, headers=headers.known(model, ignored))


@dataclass(frozen=True)
class _Generating:
    """One answer to be. `began`: perf_counter when the request was there."""

    llm: Worker
    job: Chat
    answer: Answer
    began: float

    async def collected(self) -> Body:
        await language.exhausted(self._events())
        return self.answer.body(self._seconds())

    async def told(self) -> AsyncGenerator[Message, None]:
        async with aclosing(self._events()) as told:
            async for message in told:
                yield message
        for message in self.answer.end(self._seconds()):
            yield message

    async def _events(self) -> AsyncGenerator[Message, None]:
        async with aclosing(language.generating(self.llm, self.job, NAMES)) as events:
            async for event in events:
                for message in self.answer.take(event):
                    yield message

    def _seconds(self) -> float:
        return time.perf_counter() - self.began
