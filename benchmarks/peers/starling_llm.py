"""Our language-model engine without HTTP and pipes: `python -m benchmarks.peers.starling_llm MODEL DATA_DIR`.

Says a line when the model is loaded, then answers each line of questions with one of answers (benchmarks/chatting.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.chatting import Answer, Question
from protocol.events import ChoiceEnded, Delta, Event, Failed, Generated
from protocol.jobs import Chat, ChatMessage, Generation, Sampling
from protocol.settings import LlmSettings

if TYPE_CHECKING:
    from workers.llm.engine import LlmEngine


def main() -> None:
    model, data_dir = sys.argv[1:]
    from workers.llm.engine import build

    engine = build(LlmSettings(model, data_dir, offline=True), lambda loading: None)
    spent = _timed_sampling()
    print("ready", flush=True)
    for line in sys.stdin:
        spent.clear()
        answers = answer(engine, msgspec.json.decode(line, type=list[Question]))
        answers[0].sampling_s = sum(spent)
        print(msgspec.json.encode(answers).decode(), flush=True)


def answer(engine: LlmEngine, questions: Sequence[Question]) -> list[Answer]:
    answers = [Answer() for _ in questions]
    waiting = list(range(len(questions)))
    while waiting or engine.busy:
        for place in list(waiting):
            if all(len(each.text) >= questions[place].after for each in answers[:place]):
                waiting.remove(place)
                answers[place].asked = time.perf_counter()
                engine.admit(_job(questions[place]), lambda event, own=answers[place]: _hear(event, own))  # type: ignore[misc]
        engine.step()
    return answers


def _timed_sampling() -> list[float]:
    """From here on each choice of a token adds its seconds to the list."""
    from workers.llm.sampling import Sampler

    spent: list[float] = []
    plain = Sampler.choose

    def choose(sampler: Sampler, *arguments: Any, **options: Any) -> int:
        began = time.perf_counter()
        token = plain(sampler, *arguments, **options)
        spent.append(time.perf_counter() - began)
        return token

    patched: Any = Sampler
    patched.choose = choose
    return spent


def _job(question: Question) -> Chat:
    return Chat(
        tuple(msgspec.convert(message, ChatMessage) for message in question.messages),
        Generation(
            sampling=Sampling(temperature=question.temperature, top_p=question.top_p), max_tokens=question.tokens
        ),
    )


def _hear(event: Event, answer: Answer) -> None:
    if isinstance(event, Delta | ChoiceEnded):
        answer.first = answer.first or time.perf_counter()
    if isinstance(event, Delta) and event.text:
        answer.times.append(time.perf_counter())
        answer.sizes.append(len(event.text))
        answer.text += event.text
    elif isinstance(event, Generated):
        answer.prompt_tokens, answer.tokens = event.prompt_tokens, event.completion_tokens
        answer.cached_tokens = event.cached_tokens
    elif isinstance(event, Failed):
        raise RuntimeError(event.message)


if __name__ == "__main__":
    main()
