"""`python -m benchmarks --llm`: the language model against mlx_lm.server, with the same weights and BLAS, in turn.

`--beside NAME=URL` lets any other server that speaks OpenAI's protocol take part. Every engine is asked the same in
each round; medians, and ours for each of theirs. Measures, judges nothing.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.chatting import Answer, Ask, Question, in_process, over_http, peer_server, rate
from service.config import Config
from tests.e2e.server import Server, serving
from workers.loop import REST_S

OURS, ENGINE, THEIRS = "starling, HTTP", "starling, in process", "mlx_lm.server"
TOKENS = 40
"""Of a timed answer."""
SETTLE_S = 0.15
"""Before each is asked. After an answer some put their caches away and have threads that wait busily for the next: that
would be the time of whoever is asked next."""
CROWD, DECODING = 8, 4
TOP_P = 0.9
SHORT, MIDDLE, LONG = 1, 50, 185
"""Sentences of a question that make about 50, 600 and 2000 tokens of prompt."""
WORDS = (
    "apple river stone window garden letter music bridge candle forest winter market silver pocket ladder ocean "
    "teacher kitchen mirror shadow village engine blanket harvest lantern meadow orchard pebble saddle thunder"
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks --llm", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="only these (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="counted runs of each (default: 3)")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="(default: smollm2-135m-instruct)")
    parser.add_argument("--data-dir", type=Path, default=Path(Config().data_dir), help="where the models are")
    parser.add_argument("--alone", action="store_true", help="without mlx_lm.server")
    parser.add_argument(
        "--beside",
        action="append",
        type=named_server,
        default=[],
        metavar="NAME=URL",
        help="also ask this server, which runs already, for a model of that name; may be given again",
    )
    options = parser.parse_args(arguments)
    console = Console(width=150)
    console.print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    model, data_dir = options.model, str(options.data_dir)
    with ExitStack() as stack:
        server = stack.enter_context(serving(options.data_dir, "--llm-model", model))
        engines = {OURS: over_http(server.url), ENGINE: stack.enter_context(in_process(model, data_dir))}
        others: dict[str, psutil.Process] = {}
        if not options.alone:
            engines[THEIRS], process = stack.enter_context(peer_server(model, data_dir))
            others[THEIRS] = psutil.Process(process.pid)
        for name, url in options.beside:
            engines[name] = over_http(url, name)
            if (found := listening(url)) is not None:
                others[name] = found
        for ask in engines.values():
            # What is built or loaded at the first request is no round's.
            ask([story(SHORT)])
        _memory(console, server, others, "before")
        for name in options.part or PARTS:
            console.print(PARTS[name](Bench(engines, options.rounds)))
        _memory(console, server, others, "after")
        time.sleep(REST_S + 1)
        _memory(console, server, others, "at rest")


@dataclass(frozen=True)
class Bench:
    """The engines, ours first, and how often each is asked."""

    engines: Mapping[str, Ask]
    rounds: int

    def compare(self, question: Callable[[], Sequence[Question]], *without: str) -> dict[str, list[list[Answer]]]:
        """For each engine and round its answers; all engines are asked the same, and nothing twice."""
        found: dict[str, list[list[Answer]]] = {name: [] for name in self.engines if name not in without}
        for _ in range(self.rounds):
            asked = question()
            for name, answers in found.items():
                answers.append(self.ask(name, asked))
        return found

    def ask(self, name: str, asked: Sequence[Question]) -> list[Answer]:
        time.sleep(SETTLE_S)
        return self.engines[name](asked)


def named_server(given: str) -> tuple[str, str]:
    """Of NAME=URL."""
    name, _, url = given.partition("=")
    address = urlsplit(url)
    if not name or name in (OURS, ENGINE, THEIRS) or address.scheme != "http" or not address.hostname:
        raise argparse.ArgumentTypeError(f"{given!r} is no NAME=http://HOST:PORT")
    return name, url


def listening(url: str) -> psutil.Process | None:
    """The process behind a URL, if it is one on this machine that we may look at."""
    address = urlsplit(url)
    if address.hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN and each.laddr.port == address.port:
                    return process
    return None


def story(sentences: int, tokens: int = 1, after: int = 0, top_p: float = 1.0) -> Question:
    """A question that is answered at length. What is random in it comes first, so that no prompt cache knows more of it
    than the template's beginning."""
    drawn = (random.sample(WORDS.split(), 3) for _ in range(sentences))
    said = " ".join(f"The {one} and the {other} went to the {third}." for one, other, third in drawn)
    return Question(
        messages=({"role": "user", "content": f"{said} Tell me a very long story about them."},),
        tokens=tokens,
        temperature=0.0 if top_p >= 1 else 0.7,
        top_p=top_p,
        after=after,
    )


def decode(bench: Bench) -> Table:
    """Tokens a second of one client and of eight, greedy and with top_p; what the service and sampling cost."""
    table = _table(bench, "decode, tokens a second in all", "HTTP and pipes", "our sampling", "the others' sampling")
    once = Bench(bench.engines, 1)
    for clients in (1, CROWD):
        rates: dict[float, dict[str, list[float]]] = {1.0: {}, TOP_P: {}}
        shares: dict[float, list[float]] = {1.0: [], TOP_P: []}
        for _ in range(bench.rounds):
            for top_p, found in rates.items():
                asked = [story(SHORT, TOKENS, top_p=top_p) for _ in range(clients)]
                for name, (answers,) in once.compare(lambda asked=asked: asked).items():  # type: ignore[misc]
                    found.setdefault(name, []).append(rate(answers))
                    if name == ENGINE:
                        shares[top_p].append(_sampling(answers))
        for top_p, found in rates.items():
            title = f"{clients} client{'s' if clients > 1 else ''}, {'greedy' if top_p >= 1 else f'top_p {top_p}'}"
            service = 1 - _ratio(found[OURS], found[ENGINE])
            others = (1 - _ratio(found[name], rates[1.0][name]) for name in found if name not in (OURS, ENGINE))
            theirs = ", ".join(f"{share:.1%}" for share in others)
            table.add_row(title, *_cells(found), f"{service:.1%}", f"{median(shares[top_p]):.1%}", theirs)
    return table


def _sampling(answers: Sequence[Answer]) -> float:
    """The share of the time in which tokens came that went into choosing them."""
    times = [at for each in answers for at in each.times]
    return sum(each.sampling_s for each in answers) / (max(times) - min(times))


def first(bench: Bench) -> Table:
    """Seconds to the first token of a short prompt and of a long one, and of a long conversation's next turn."""
    table = _table(bench, "seconds to the first token", "tokens of prompt (of them cached)")
    found = bench.compare(lambda: [story(SHORT)])
    table.add_row("short prompt", *_cells(_firsts(found)), _prompts(found))
    colds: dict[str, list[list[Answer]]] = {name: [] for name in bench.engines}
    nexts: dict[str, list[list[Answer]]] = {name: [] for name in bench.engines}
    for _ in range(max(1, bench.rounds - 1)):
        question = story(LONG, tokens=12)
        for name in bench.engines:
            colds[name].append(bench.ask(name, [question]))
            said = {"role": "assistant", "content": colds[name][-1][0].text}
            turn = Question(messages=(*question.messages, said, {"role": "user", "content": "Go on."}), tokens=2)
            nexts[name].append(bench.ask(name, [turn]))
    table.add_row("long prompt", *_cells(_firsts(colds)), _prompts(colds))
    table.add_row("next turn", *_cells(_firsts(nexts)), _prompts(nexts))
    return table


def arrival(bench: Bench) -> Table:
    """A short and a longer chat that come while four decode: their first token, and the longest gap of the others."""
    table = _table(bench, f"while {DECODING} decode, seconds")
    for title, sentences, tokens in (("short chat", SHORT, TOKENS), ("longer chat", MIDDLE, 2 * TOKENS)):
        found = bench.compare(
            lambda sentences=sentences, tokens=tokens: [  # type: ignore[misc]
                *(story(SHORT, tokens) for _ in range(DECODING)),
                story(sentences, 2, after=30),
            ]
        )
        firsts = {name: [answers[-1].first_s for answers in rounds] for name, rounds in found.items()}
        gaps = {name: [_gap(answers) for answers in rounds] for name, rounds in found.items()}
        table.add_row(f"{title}: first token", *_cells(firsts))
        table.add_row(f"{title}: the others' longest gap", *_cells(gaps))
    return table


def _gap(answers: Sequence[Answer]) -> float:
    """The longest of the others since the last one asked: before, they waited for each other."""
    *others, last = answers
    return max(Answer(times=[at for at in each.times if at > last.asked]).gap_s for each in others)


def _firsts(found: Mapping[str, list[list[Answer]]]) -> dict[str, list[float]]:
    return {name: [answers[0].first_s for answers in rounds] for name, rounds in found.items()}


def _prompts(found: Mapping[str, list[list[Answer]]]) -> str:
    last = [rounds[-1][0] for rounds in found.values()]
    return ", ".join(f"{answer.prompt_tokens} ({answer.cached_tokens})" for answer in last)


def _table(bench: Bench, title: str, *more: str) -> Table:
    return Table("", *bench.engines, *more, title=f"{title}; in brackets ours for each of that engine's")


def _cells(found: Mapping[str, list[float]]) -> list[str]:
    ours = found[OURS]
    return [f"{median(values):.3g} ({_ratio(ours, values):.2f})" for values in found.values()]


def _ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """The median over the rounds, each within itself."""
    return median(mine / other for mine, other in zip(a, b, strict=True))


def _memory(console: Console, server: Server, others: Mapping[str, psutil.Process], when: str) -> None:
    (worker,) = server.workers("llm")
    held = {"our worker": worker, **others}
    listed = (f"{name} {process.memory_info().rss / (1 << 20):.0f} MiB" for name, process in held.items())
    console.print(f"resident {when}: {', '.join(listed)}")


PARTS: dict[str, Callable[[Bench], Table]] = {"decode": decode, "first": first, "arrival": arrival}
