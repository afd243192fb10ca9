"""Requests made from /openapi.json, right ones and wrong ones, against a running service: what it promises must hold.

`python -m tests.e2e.fuzzing [--seconds N] [--seed N] [URL]` is the long run; it starts a service where no URL is given.
Knows the document and how much a model may be asked for; knows no route's meaning.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests import promised
from tests.e2e import living
from tests.e2e.living import Living
from tests.e2e.server import ROOT, serving

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PATIENCE_S = 60
"""For one answer."""
BRIEF = {"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 4, "n": 2, "best_of": 2, "top_logprobs": 3}
"""What a request may ask of the model at most: this is about requests, not about answers."""
RESPONSES, SESSIONS = "/v1/responses", living.PATH
RAW = ("audio/pcm", "audio/l16")
CASES = 8
"""Of each route, right or wrong ones, in a round."""


@dataclass
class Found:
    """What came of it."""

    inputs: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    """The first of each route and kind, by the route and what was wrong."""
    ids: dict[str, list[str]] = field(default_factory=dict)
    """Of sessions and responses that were made; the latter to be asked for again."""

    def note(self, case: Case, answer: requests.Response) -> None:
        self.inputs += 1
        self.statuses[f"{case.method} {case.path} {answer.status_code}"] += 1
        made = case.method == "POST" and case.path in (SESSIONS, RESPONSES)
        if made and answer.status_code in (200, 201) and answer.headers["content-type"] == "application/json":
            self.ids.setdefault(case.path, []).append(answer.json()["id"])


def fuzz(url: str, *, seconds: float, seed: int, rounds: int = 1_000_000) -> Found:
    """Ask for every route in turn, a few times each, until the time is over (or that many rounds are)."""
    for media_type in RAW:
        # It knows no bytes of these types by itself.
        schemathesis.openapi.media_type(media_type, st.binary(max_size=64))
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    strategies = [each.as_strategy(mode) for each in operations for mode in GenerationMode]
    found, end, chance = Found(), time.monotonic() + seconds, random.Random(seed)
    recording = (ROOT / "service" / "sample.flac").read_bytes()
    with requests.Session() as session:
        sessions = Living(url, session, chance, PATIENCE_S)
        prepare = _prepared(sessions, found, chance, recording)

        def run(case: Case) -> None:
            if time.monotonic() < end:
                prepare(case)
                _one(case, session, found)

        for number in range(rounds):
            for strategy in strategies:
                if time.monotonic() < end:
                    _drawn(strategy, run, seed + number)
            if time.monotonic() > end:
                break
        _removed(url, session, found)
        sessions.remove()
    return found


def _removed(url: str, session: requests.Session, found: Found) -> None:
    """What was made is gone: nobody who asks the same service afterwards shall find it."""
    for root, ids in found.ids.items():
        for id in ids:
            session.delete(f"{url}{root}/{id}", timeout=PATIENCE_S)


def _drawn(strategy: st.SearchStrategy[Case], run: Callable[[Case], None], seed: int) -> None:
    """Run some cases."""
    drawing = settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    with suppress(Unsatisfiable):  # Nothing can be wrong with a request that takes nothing.
        seeded(seed)(drawing(given(case=strategy)(run)))()


def _one(case: Case, session: requests.Session, found: Found) -> None:
    where = f"{case.method} {case.path}"
    try:
        answer = case.call(session=session, timeout=PATIENCE_S)
        told: requests.Response = session_response(answer)
        found.note(case, told)
        case.validate_response(answer, checks=CHECKS)
        headers = {name.lower(): value for name, value in told.headers.items()}
        promised.check(case.method, unquote(case.formatted_path), told.status_code, headers, told.content)
    except (FailureGroup, AssertionError, requests.RequestException) as failure:
        # It is told at the end; the others go on.
        first = str(failure).strip().splitlines()
        found.failures.setdefault(f"{where}: {' '.join(first[:3])[:200]}", f"{failure}\n{case!r}"[:3000])


def session_response(answer: Any) -> requests.Response:
    made = requests.Response()
    made.status_code, made._content = answer.status_code, answer.content
    made.headers.update({name: values[0] for name, values in answer.headers.items()})
    return made


def _prepared(sessions: Living, found: Found, chance: random.Random, recording: bytes) -> Callable[[Case], None]:
    """Makes a generated request one that a small model can answer soon, and often one that gets past its refusals."""

    def prepare(case: Case) -> None:
        if case.path.startswith(f"{SESSIONS}/") and case.path_parameters and chance.random() < 0.85:
            _address(case, sessions, chance)
        made = found.ids.get(RESPONSES, []) if case.path.startswith(f"{RESPONSES}/") else []
        if made and case.path_parameters and chance.random() < (0.1 if case.method == "DELETE" else 0.6):
            case.path_parameters["id"] = chance.choice(made[-4:])
        if isinstance(case.body, dict):
            _brief(case.body)
            if "file" in case.body and case.path.startswith("/v1/audio/trans") and chance.random() < 0.5:
                form = case.media_type == "multipart/form-data"
                case.body["file"] = recording if form else b64encode(recording).decode()
        elif case.media_type == "application/octet-stream" and chance.random() < 0.3:
            case.body = recording

    return prepare


def _address(case: Case, sessions: Living, chance: random.Random) -> None:
    """Make it a request about a session that there is, most of the time with audio that can be heard."""
    if (id := sessions.one()) is None:
        return
    case.path_parameters["id"] = id
    if case.method == "DELETE":
        sessions.forget(id)
    elif case.path.endswith("/events"):
        sessions.end(id)
    elif case.path.endswith("/audio"):
        sessions.number(case.headers, "x-starling-seq")
        if case.media_type in RAW and chance.random() < 0.8:
            case.body = sessions.audio(case.media_type)


def _brief(body: dict[str, Any]) -> None:
    for name, most in BRIEF.items():
        if isinstance(body.get(name), int) and not isinstance(body[name], bool) and body[name] > most:
            body[name] = most
    if "messages" in body or "input" in body or "prompt" in body:
        for name in ("max_tokens", "max_output_tokens"):
            body.setdefault(name, 4)
    for name in ("faithful", "beam_size"):
        # Minutes of a slow oracle tell nothing new about requests.
        body.pop(name, None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.fuzzing", description=str(__doc__).partition("\n")[0])
    parser.add_argument("url", nargs="?", help="a running service; without it one is started, with the starter models")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    wanted = parser.parse_args()
    if wanted.url:
        sys.exit(_report(fuzz(wanted.url.rstrip("/"), seconds=wanted.seconds, seed=wanted.seed), wanted.seed))
    models = Path.home() / ".cache" / "starling-tests"
    with serving(models, "--whisper-model", "whisper-tiny.en", "--llm-model", "smollm2-135m-instruct") as server:
        sys.exit(_report(fuzz(server.url, seconds=wanted.seconds, seed=wanted.seed), wanted.seed))


def _report(found: Found, seed: int) -> int:
    told = [f"{times:6} {name}" for name, times in sorted(found.statuses.items())]
    told += [f"\n{name}\n{details}" for name, details in found.failures.items()]
    told.append(f"\n{found.inputs} requests, {len(found.failures)} kinds of failure (seed {seed})\n")
    sys.stdout.write("\n".join(told))
    return 1 if found.failures else 0


if __name__ == "__main__":
    main()
