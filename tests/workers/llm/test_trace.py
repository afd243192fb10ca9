"""One line of log for a traced request."""

from __future__ import annotations

import pytest

from protocol.events import Spent
from workers.llm import trace
from workers.llm.trace import Route

SPENT = Spent(queue=1.25, template=0.5, cache=0.1, prefill=50.04, first_token=60, decode=800)
ROUTES = [Route("<think>", "marker"), Route("\n", "held back"), Route("Hm", "reasoning")]


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="workers.llm.trace")


def test_a_trace_has_phases_and_ways_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    trace.log(SPENT, 120, 100, ROUTES, show_text=False)
    assert caplog.messages == [
        "trace: prompt 120 tokens, 100 cached; ms: queue 1.2, template 0.5, cache 0.1, prefill 50.0, first token 60.0, "
        "decode 800.0; first tokens: marker, held back, reasoning"
    ]


def test_tokens_are_spelt_out_on_one_line_where_that_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    trace.log(SPENT, 120, 100, ROUTES, show_text=True)
    assert caplog.messages[0].endswith(r"first tokens: marker '<think>', held back '\n', reasoning 'Hm'")


def test_a_request_that_said_nothing_has_a_trace_too(caplog: pytest.LogCaptureFixture) -> None:
    trace.log(Spent(), 5, 0, (), show_text=True)
    assert caplog.messages[0].endswith("decode 0.0; first tokens: none")
