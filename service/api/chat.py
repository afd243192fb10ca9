"""POST /v1/chat/completions and /v1/completions: a conversation or a text in, what the model says out.

Knows the order of the work; what a field means is said in service/chat, how an answer is written in completions.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from protocol.jobs import Chat, Complete
from service import completions as rendering
from service import dialects, headers, reply
from service.api import language
from service.api.answers import as_json
from service.chat.request import (
    NOT_HERE,
    SAID_OTHERWISE,
    Asked,
    ChatRequest,
    CompletionRequest,
    Unheeded,
    read_chat,
    read_completion,
)
from service.chat.written import ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk
from service.contract import KNOWN, Contract, Outcome, Sent, events, json
from service.house import House
from service.sse import DONE, Message
from service.worker import Worker
from service.written import Failed


def _contract(what: str, whole: type, chunk: type, sent: Sent) -> Contract:
    """Both routes answer in the same two ways."""
    return Contract(
        language.GROUP,
        (
            Outcome(
                f"the whole {what}, or its stream, which ends with [DONE]",
                (json(whole), events(chunk, Failed, end="[DONE]")),
                headers=KNOWN,
            ),
        ),
        failures=language.FAILURES,
        body=(sent,),
        parameters=language.PARAMETERS,
    )


CHAT = _contract(
    "message",
    ChatCompletion,
    ChatCompletionChunk,
    Sent(
        "application/json",
        ChatRequest,
        hidden=("audio", "functions", "function_call", *NOT_HERE),
        unheeded=Unheeded,
        members=SAID_OTHERWISE,
        example={"messages": [{"role": "user", "content": "Name three birds that sing."}]},
    ),
)
COMPLETIONS = _contract(
    "text",
    Completion,
    CompletionChunk,
    Sent(
        "application/json",
        CompletionRequest,
        hidden=("suffix", *NOT_HERE),
        unheeded=Unheeded,
        members=SAID_OTHERWISE,
        needs=("prompt",),
        example={"prompt": "The birds that sing are", "max_tokens": 32},
    ),
)


async def chat(house: House, request: Request) -> Response:
    return await _answer(house, request, _chat)


async def completions(house: House, request: Request) -> Response:
    return await _answer(house, request, _completion)


@dataclass(frozen=True)
class _Wanted:
    """One request, checked. `choices`: to generate for each job; `asked`: how many of them the client wants."""

    fields: Asked
    ignored: list[str]
    jobs: tuple[Chat | Complete, ...]
    dialect: dialects.Dialect
    choices: int
    asked: int


def _chat(members: Mapping[str, Any], who: str, trace: bool) -> _Wanted:
    wanted, ignored = read_chat(members)
    dialect = dialects.Chat(logprobs=wanted.logprobs)
    return _Wanted(wanted, ignored, (wanted.job(who, trace=trace),), dialect, wanted.n, wanted.n)


def _completion(members: Mapping[str, Any], who: str, trace: bool) -> _Wanted:
    wanted, ignored = read_completion(members)
    dialect = dialects.Text(logprobs=wanted.logprobs)
    return _Wanted(wanted, ignored, wanted.jobs(who, trace=trace), dialect, wanted.candidates, wanted.n)


async def _answer(house: House, request: Request, parse: Callable[[Mapping[str, Any], str, bool], _Wanted]) -> Response:
    asking = await language.read(house, request)

    def parsed() -> tuple[_Wanted, str]:
        wanted = parse(asking.members, asking.client, asking.trace)
        return wanted, wanted.fields.model

    wanted, model, llm = await language.checked(house, parsed)
    id = f"{wanted.dialect.prefix}{secrets.token_hex(12)}"
    answer = _Answer(llm, wanted, model, id, int(time.time()), asking.began)
    told = headers.known(model, wanted.ignored)
    if wanted.fields.stream:
        return await language.streamed(house, request, answer.told(), told)
    return as_json(await reply.unless_gone(request, answer.collected()), headers=told)


@dataclass(frozen=True)
class _Answer:
    """One answer to be. `began`: perf_counter when the request was there; `created`: seconds since 1970."""

    llm: Worker
    wanted: _Wanted
    model: str
    id: str
    created: int
    began: float

    async def collected(self) -> dialects.Body:
        wanted = self.wanted
        whole = rendering.Collected(wanted.dialect, choices=wanted.choices, asked=wanted.asked)
        async with aclosing(reply.generating(self.llm, wanted.jobs)) as events:
            async for event in events:
                whole.take(event)
        return whole.body(self._head(), time.perf_counter() - self.began)

    async def told(self) -> AsyncGenerator[Message, None]:
        """The stream's messages. The first comes with the first token: until then a refusal has its status."""
        wanted = self.wanted
        choices = wanted.choices * len(wanted.jobs)
        async with aclosing(reply.generating(self.llm, wanted.jobs)) as events:
            chunks = None
            async for event in events:
                # Not before: the model that answers is known once it does.
                chunks = chunks or rendering.Chunks(
                    self._head(), wanted.dialect, choices=choices, usage=wanted.fields.usage_wanted
                )
                for chunk in chunks.take(event):
                    yield chunk
        assert chunks is not None, "an answer has events"
        for chunk in chunks.end(time.perf_counter() - self.began):
            yield chunk
        yield DONE

    def _head(self) -> rendering.Head:
        return rendering.Head(self.id, self.created, self.model, rendering.fingerprint(self.llm.ready))
