"""Questions to a language model and when their answers came, over HTTP or from a process of benchmarks/peers.

Knows how to ask and to time; compares nothing.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from urllib.parse import urlsplit

import msgspec

from tests.e2e.server import ROOT, unused_port

START_S = 120.0
PATIENCE_S = 300.0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A chat to be answered."""

    messages: tuple[dict[str, str], ...]
    tokens: int
    """At most."""
    temperature: float = 0.0
    top_p: float = 1.0
    after: int = 0
    """It is asked once each question before it has been answered by so many characters."""


class Answer(msgspec.Struct):
    """What was heard, in seconds of one clock."""

    asked: float = 0.0
    first: float = 0.0
    """When its first token came, or its end where there was none."""
    times: list[float] = []
    """When each piece of text came: one token or, of a fast answer, a few."""
    sizes: list[int] = []
    """Characters of each."""
    text: str = ""
    prompt_tokens: int = 0
    """0 where the server does not say; so are those of them that were cached."""
    cached_tokens: int = 0
    tokens: int = 0
    sampling_s: float = 0.0
    """Of our engine in process: seconds in which its tokens were chosen."""

    @property
    def first_s(self) -> float:
        return self.first - self.asked

    @property
    def gap_s(self) -> float:
        """The longest between two pieces; 0 where there are none."""
        return max((later - earlier for earlier, later in pairwise(self.times)), default=0.0)


Ask = Callable[[Sequence[Question]], list[Answer]]
"""Asks all at once, but for what `after` says."""


def rate(answers: Sequence[Answer]) -> float:
    """Tokens a second, of all together, while all of them were spoken; where that never was, from first to last. A
    piece has as large a part of its answer's tokens as of its characters."""
    spoken = [each for each in answers if len(each.times) > 1]
    begin, end = max(each.times[0] for each in spoken), min(each.times[-1] for each in spoken)
    if begin >= end:
        begin, end = min(each.times[0] for each in spoken), max(each.times[-1] for each in spoken)
    said = (
        each.tokens
        * sum(size for at, size in zip(each.times, each.sizes, strict=True) if begin < at <= end)
        / sum(each.sizes)
        for each in spoken
    )
    return sum(said) / (end - begin)


def over_http(url: str, model: str | None = None) -> Ask:
    """Of a server that speaks OpenAI's protocol; the clock is the client's. Some want to be told their model's name."""

    def ask(questions: Sequence[Question]) -> list[Answer]:
        answers = [Answer() for _ in questions]

        def one(place: int) -> None:
            while any(len(each.text) < questions[place].after for each in answers[:place]):
                time.sleep(0.005)
            _stream(url, model, questions[place], answers[place])

        with ThreadPoolExecutor(len(questions)) as pool:
            list(pool.map(one, range(len(questions))))
        return answers

    return ask


def _stream(url: str, model: str | None, question: Question, answer: Answer) -> None:
    body = {
        **({} if model is None else {"model": model}),
        "messages": question.messages,
        "max_tokens": question.tokens,
        "temperature": question.temperature,
        "top_p": question.top_p,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    answer.asked = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", msgspec.json.encode(body), {"Content-Type": "application/json"})
    with connection.getresponse() as response:
        assert response.status == 200, response.read()
        hear(response, answer)
    connection.close()


def hear(lines: Iterable[bytes], answer: Answer) -> None:
    """The lines of an answer's stream, as they come."""
    decoder = msgspec.json.Decoder(_Chunk)
    ended = False
    for line in lines:
        event = line.removeprefix(b"data:").strip()
        if event == line.strip() or not event.startswith(b"{"):
            continue
        chunk = decoder.decode(event)
        text = "".join(choice.delta.content or "" for choice in chunk.choices)
        now = time.perf_counter()
        # Empty ones come with a role or with the end.
        if text:
            answer.times.append(now)
            answer.sizes.append(len(text))
            answer.text += text
        ended = ended or any(choice.finish_reason for choice in chunk.choices)
        if text or ended:
            answer.first = answer.first or now
        if chunk.usage is not None:
            answer.prompt_tokens, answer.tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
            if chunk.usage.prompt_tokens_details is not None:
                answer.cached_tokens = chunk.usage.prompt_tokens_details.cached_tokens or 0
    assert ended, "the answer was cut off"
    # Who does not count for us most likely sends each token as it comes.
    answer.tokens = answer.tokens or len(answer.times)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Said(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Said
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


@contextmanager
def peer_server(model: str, data_dir: str) -> Iterator[tuple[Ask, subprocess.Popen[bytes]]]:
    """mlx_lm.server, once it answers."""
    port = unused_port()
    command = [sys.executable, "-m", "benchmarks.peers.mlx_lm_server", model, data_dir, str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        try:
            _wait(port, process)
            yield over_http(f"http://127.0.0.1:{port}"), process
        finally:
            process.terminate()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except ConnectionError:
            time.sleep(0.2)
    raise AssertionError("mlx_lm.server does not answer")


@contextmanager
def in_process(model: str, data_dir: str) -> Iterator[Ask]:
    """Our engine without HTTP and pipes, in a process of its own that has loaded its model."""
    command = [sys.executable, "-m", "benchmarks.peers.starling_llm", model, data_dir]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        asks, answers, lock = process.stdin, process.stdout, threading.Lock()

        def ask(questions: Sequence[Question]) -> list[Answer]:
            with lock:
                asks.write(msgspec.json.encode(questions) + b"\n")
                asks.flush()
                return msgspec.json.decode(answers.readline(), type=list[Answer])

        answers.readline()
        try:
            yield ask
        finally:
            process.terminate()
