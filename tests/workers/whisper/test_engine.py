"""Many jobs at once: the same texts as alone, urgent ones first, nothing left behind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from protocol.events import Failed, Progress, Segment, Transcribed
from protocol.jobs import Heard, Span
from tests.workers.whisper.driver import READY, guess, job, run, segments, sound, text
from tests.workers.whisper.toy import ToyModel, hashed, scripted
from workers.whisper.engine import Shares, WhisperEngine
from workers.whisper.tokenizer import Tokenizer

T = Tokenizer(51865).timestamp_begin


def mixed(folder: Path) -> list[Any]:
    """Jobs of every kind: greedy, sampled, beams, words, prompts, cut audio."""

    def audio(i: int) -> Any:
        return sound(folder / f"spool{i}", 3.0 + 9 * i, seed=i)

    return [
        job(audio(0), urgent=True, audio_ctx="auto"),
        job(audio(1), temperature=(0.0, 0.4)),
        job(audio(2), temperature=(0.8,), best_of=3, seed=5),
        job(audio(3), beam_size=4, temperature=(0.0,)),
        job(audio(4), words=True, temperature=(0.0,), language="de", prompt="Ada"),
        job(audio(3), spans=(Span(0, 100_000), Span(160_000, 420_000)), independent=True, temperature=(0.0,)),
    ]


def said(events: list[Any]) -> list[Any]:
    assert isinstance(events[-1], Transcribed)
    return [(each.start, each.end, each.text, each.tokens, each.words) for each in segments(events)]


def test_jobs_give_the_same_text_alone_and_together_in_any_order(tmp_path: Path) -> None:
    jobs = mixed(tmp_path)
    alone = [said(run(ToyModel(), [each])[0]) for each in jobs]
    assert sum(map(bool, alone)) > 4
    for seed in range(3):
        order = random.Random(seed).sample(range(len(jobs)), len(jobs))
        shares = Shares(windows=1 + 3 * seed, encodes=1 + seed, prefills=1 + seed, rows=8 * (1 + seed))
        together = run(ToyModel(), [jobs[i] for i in order], shares=shares)
        for i, events in zip(order, together, strict=True):
            assert said(events) == alone[i], f"job {i} in order {order}"


def test_rows_of_all_jobs_share_a_step(tmp_path: Path) -> None:
    model = ToyModel()
    run(model, [job(sound(tmp_path / f"s{i}", 5.0, seed=i), language="en", temperature=(0.0,)) for i in range(4)])
    assert max(n for name, n in model.calls if name == "step") == 4


def test_a_cancelled_job_frees_its_rows_in_that_step(tmp_path: Path) -> None:
    engine = WhisperEngine(ToyModel(), READY)
    events: list[Any] = []
    jobs = [
        engine.admit(job(sound(tmp_path / f"s{i}", 5.0, seed=i), language="en", beam_size=3), events.append)
        for i in range(2)
    ]
    while engine.stats().rows < 6:
        engine.step()
    engine.cancel(jobs[0])
    assert (engine.stats().rows, engine.stats().windows, engine.stats().jobs) == (3, 1, 1)
    engine.cancel(jobs[0])
    seen = len(events)
    engine.cancel(jobs[1])
    assert not engine.busy
    engine.step()
    assert len(events) == seen


def test_a_job_that_is_cancelled_or_over_has_closed_its_file(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    engine = WhisperEngine(ToyModel(), READY)
    audio = sound(tmp_path / "spool", 5.0)
    before = open_files()
    engine.admit(job(audio, language="en", temperature=(0.0,)), lambda event: None)
    handle = engine.admit(job(audio, language="en"), lambda event: None)
    guesses = [engine.admit(guess(audio, language="en"), lambda event: None) for _ in range(2)]
    assert open_files() == before + 4
    engine.cancel(handle)
    engine.cancel(guesses[0])
    assert open_files() == before + 2
    while engine.busy:
        engine.step()
    assert open_files() == before


def test_an_urgent_job_overtakes_files(tmp_path: Path) -> None:
    engine = WhisperEngine(ToyModel(), READY)
    finished: list[str] = []

    def emit(name: str) -> Any:
        return lambda event: finished.append(name) if isinstance(event, Transcribed) else None

    for i in range(4):
        engine.admit(job(sound(tmp_path / f"s{i}", 90.0, seed=i), language="en", temperature=(0.0,)), emit(f"file{i}"))
    for _ in range(3):
        engine.step()
    engine.admit(job(sound(tmp_path / "urgent", 5.0), urgent=True, language="en", temperature=(0.0,)), emit("urgent"))
    while engine.busy:
        engine.step()
    assert finished[0] == "urgent"
    assert len(finished) == 5


def test_files_take_turns(tmp_path: Path) -> None:
    """A long recording cut into many pieces does not keep a short one waiting."""
    engine = WhisperEngine(ToyModel(), READY, Shares(windows=4))
    finished: list[str] = []

    def emit(name: str) -> Any:
        return lambda event: finished.append(name) if isinstance(event, Transcribed) else None

    spans = tuple(Span(i * 48_000, i * 48_000 + 40_000) for i in range(30))
    long = job(sound(tmp_path / "long", 90.0), spans=spans, independent=True, language="en", temperature=(0.0,))
    engine.admit(long, emit("long"))
    for _ in range(5):
        engine.step()
    engine.admit(job(sound(tmp_path / "short", 3.0), language="en", temperature=(0.0,)), emit("short"))
    while engine.busy:
        engine.step()
        assert engine.stats().windows <= 4
    assert finished == ["short", "long"]


def test_independent_spans_answer_in_order(tmp_path: Path) -> None:
    spans = tuple(Span(i * 48_000, i * 48_000 + 40_000) for i in range(12))
    model = ToyModel()
    events = run(
        model,
        [job(sound(tmp_path / "s", 60.0), spans=spans, independent=True, temperature=(0.0,))],
        shares=Shares(windows=8),
    )[0]
    starts = [each.start for each in segments(events)]
    assert starts == sorted(starts)
    assert max(n for name, n in model.calls if name == "step") == 8
    ends = [each.done for each in events if isinstance(each, Progress)]
    assert ends == sorted(ends)
    assert ends[-1] == 30.0


def test_a_job_that_breaks_fails_alone(tmp_path: Path) -> None:
    def says(encoded: Any, said: list[int]) -> Any:
        return hashed(encoded, said)

    engine = WhisperEngine(ToyModel(says), READY)
    good: list[Any] = []
    bad: list[Any] = []

    def broken(event: Any) -> None:
        bad.append(event)
        if isinstance(event, Segment):
            raise RuntimeError("a rule is broken")

    engine.admit(job(sound(tmp_path / "a", 5.0), language="en", temperature=(0.0,)), broken)
    engine.admit(job(sound(tmp_path / "b", 5.0), language="en", temperature=(0.0,)), good.append)
    while engine.busy:
        engine.step()
    assert isinstance(bad[-1], Failed)
    assert text(good)
    assert engine.stats().jobs == 0


def test_a_job_that_waits_for_an_answer_leaves_the_engine_idle(tmp_path: Path) -> None:
    engine = WhisperEngine(ToyModel(scripted([T, 400, T + 50], no_speech=30.0)), READY)
    events: list[Any] = []
    handle = engine.admit(job(sound(tmp_path / "a", 5.0), silence_rule=True, language="en"), events.append)
    while engine.busy:
        engine.step()
    assert engine.stats().waiting == 1
    engine.answer(handle, Heard(False))
    assert engine.busy
    while engine.busy:
        engine.step()
    assert isinstance(events[-1], Transcribed)
