"""A minute of chaos: what `make chaos` does for ten, with a fixed seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import ARGUMENTS, run
from benchmarks.mix import catalogue
from tests.e2e.server import serving

pytestmark = [pytest.mark.model, pytest.mark.port, pytest.mark.timeout(900)]

UNDISTURBED = ("upload middle {'chunking_strategy': 'auto'}", "upload long {}", "stream middle {}", "dictation vad")
"""Of a long recording in pieces nothing is told before all are heard. Where faults come faster than that, three in a
row may befall it, and it is given up, as it should be."""
CHATS = ("chat greedy", "chat two, streamed", "chat schema, streamed", "chat stop", "chat call, streamed")


def test_a_minute_of_chaos_costs_no_answer_no_word_and_nothing_that_stays(model_data_dir: Path, tmp_path: Path) -> None:
    with serving(model_data_dir, *ARGUMENTS) as server:
        all_of_them = {f"{each.kind} {each.name}": each for each in catalogue(server, tmp_path)}
        asked = [all_of_them[name].undisturbed() for name in (*UNDISTURBED, *CHATS)]
        outcome = run(server, asked, seconds=60, every=4, seed=1)
    assert outcome.seen.failed == []
    assert outcome.seen.wrong == []
    assert outcome.leaks == []
    assert outcome.restarts >= 5
    assert all(outcome.seen.answered[kind] for kind in ("upload", "stream", "dictation", "chat"))
