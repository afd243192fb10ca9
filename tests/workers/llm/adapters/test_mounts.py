"""Adapters through the engine: who may ask for which, together and alone, and what stays when one goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InvalidValue, Kind, ModelNotConfigured
from protocol.events import Adapter, Failed, Mounted
from protocol.jobs import CountTokens, ListAdapters, MountAdapter, UnmountAdapter
from protocol.settings import AdapterSource, LlmSettings
from tests.workers.llm.adapters.toy_adapters import layers_of, save_mlx_lm, save_peft
from tests.workers.llm.toy import Asked, Driver, ToyLanguage, chat, complete

NEVER = frozenset({-1})
PROMPTS = ("abc", "Zebra", "a" * 40, "lorem_ipsum")
NAMES = ("none", "pirate", "poet", "pirate")


@pytest.fixture(scope="module")
def folders(model: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters in both formats and of unequal rank."""
    root = tmp_path_factory.mktemp("adapters")
    sizes = layers_of(model, (0, 1))
    return {
        "pirate": save_mlx_lm(root / "pirate", sizes, rank=4, scale=6.0),
        "poet": save_peft(root / "poet", sizes, rank=2, alpha=12.0, seed=9),
    }


def source(folder: Path, id: str | None = None) -> AdapterSource:
    return AdapterSource(id or folder.name, str(folder), folder.name)


@pytest.fixture
def driver(model: Any, folders: dict[str, Path]) -> Any:
    driver = Driver(model, ToyLanguage(NEVER))
    for folder in folders.values():
        driver.answer(MountAdapter(source(folder)))
    yield driver
    for id in ids(driver):
        driver.answer(UnmountAdapter(id))


def ids(driver: Driver) -> list[str]:
    last = driver.answer(ListAdapters()).last
    assert isinstance(last, Mounted)
    return [adapter.source.id for adapter in last.adapters]


def refusal(asked: Asked) -> tuple[Kind, str | None]:
    assert isinstance(asked.last, Failed)
    return asked.last.kind, asked.last.param


def test_what_is_mounted_is_told_with_its_size(driver: Driver, folders: dict[str, Path]) -> None:
    pirate, poet = (folders[name] for name in ("pirate", "poet"))
    assert driver.answer(ListAdapters()).last == Mounted(
        (
            Adapter(source(pirate), 4, 6.0, (pirate / "adapters.safetensors").stat().st_size, 14),
            Adapter(source(poet), 2, 6.0, (poet / "adapter_model.safetensors").stat().st_size, 14),
        )
    )


def test_jobs_with_different_adapters_decode_together_and_say_what_each_says_alone(driver: Driver) -> None:
    jobs = [complete(prompt, adapter=name) for prompt, name in zip(PROMPTS, NAMES, strict=True)]
    alone = []
    for job in jobs:
        driver.cache.clear()
        alone.append(driver.answer(job).text())
    driver.cache.clear()
    together = [driver.ask(job) for job in jobs]
    driver.run(until=lambda: len(driver.seats) == len(jobs))
    assert len(driver.seats) == len(jobs), "they are in one batch at the same time"
    driver.run()
    assert [each.text() for each in together] == alone


def test_adapters_change_the_text_and_an_answer_says_which_wrote_it(driver: Driver) -> None:
    said = {name: driver.answer(complete("abc", adapter=name)) for name in ("none", "pirate", "poet")}
    assert len({asked.text() for asked in said.values()}) == 3
    assert [asked.last.adapter for asked in said.values()] == [None, "pirate", "poet"]  # type: ignore[union-attr]


def test_what_one_adapter_computed_is_no_prefix_for_another(driver: Driver) -> None:
    driver.answer(complete("a" * 40, adapter="pirate"))
    again = [driver.answer(complete("a" * 40, adapter=name)) for name in ("poet", "none", "pirate")]
    assert [asked.started.cached_tokens for asked in again] == [0, 0, 39]


def test_a_prompt_that_is_being_answered_is_no_prefix_for_another_adapter(driver: Driver) -> None:
    asked = driver.ask(complete("b" * 40, adapter="pirate", tokens=60))
    driver.run(until=lambda: bool(asked.text()))
    others = [driver.ask(complete("b" * 40, adapter=name, tokens=2)) for name in ("poet", "pirate")]
    driver.run()
    assert [other.started.cached_tokens for other in others] == [0, 39]


def test_the_very_ids_of_a_conversation_come_back_to_its_own_adapter_alone() -> None:
    from workers.llm.history import History

    history = History()
    history.remember("abc", [7, 8], key="pirate#1")
    said: tuple[Callable[[str], list[int]], Callable[[Any], str]] = (
        lambda text: [ord(each) for each in text],
        lambda ids: "abc" + "".join(map(chr, ids[2:])),
    )
    plain = [ord(each) for each in "abcd"]
    assert history.ids_of("abcd", plain, *said, key="pirate#1") == (7, 8, ord("d"))
    assert history.ids_of("abcd", plain, *said, key="pirate#2") == tuple(plain)
    assert history.ids_of("abcd", plain, *said) == tuple(plain)


def test_an_unmounted_adapter_serves_those_that_run_and_nobody_else(driver: Driver) -> None:
    alone = driver.answer(complete("abc", adapter="pirate", tokens=60)).text()
    base = driver.answer(complete("abc", tokens=60)).text()
    driver.cache.clear()
    running = driver.ask(complete("abc", adapter="pirate", tokens=60))
    driver.run(until=lambda: len(running.text()) > 5)
    assert driver.ask(UnmountAdapter("pirate")).over
    assert refusal(driver.ask(complete("abc", adapter="pirate"))) == (Kind.UNKNOWN_ADAPTER, "adapter")
    beside = driver.ask(complete("abc", tokens=60))
    driver.run()
    assert (running.text(), beside.text()) == (alone, base)
    assert ids(driver) == ["poet"]


def test_nothing_stays_of_an_adapter_that_has_gone(model: Any, driver: Driver, folders: dict[str, Path]) -> None:
    base = driver.answer(complete("abc", logprobs=5)).events
    driver.cache.clear()
    driver.answer(complete("Zebra", adapter="pirate"))
    driver.answer(complete("Zebra", adapter="poet"))
    held = driver.cache.nbytes
    for id in ("pirate", "poet"):
        driver.answer(UnmountAdapter(id))
    assert (held > 0, driver.cache.nbytes) == (True, 0)
    assert {type(module).__name__ for _, module in model.named_modules()} & {"AdaptedLinear"} == set()
    again = driver.answer(complete("abc", logprobs=5)).events
    assert again[:-1] == base[:-1], "bit for bit, log-probabilities too"


def test_another_adapter_under_a_name_that_was_used_before_starts_from_nothing(
    driver: Driver, folders: dict[str, Path]
) -> None:
    poet = driver.answer(complete("abc", adapter="poet")).text()
    running = driver.ask(complete("abc", adapter="pirate", tokens=40))
    driver.run(until=lambda: bool(running.text()))
    driver.ask(UnmountAdapter("pirate"))
    assert driver.ask(MountAdapter(source(folders["poet"], "pirate"))).over
    driver.run()
    asked = driver.answer(complete("abc", adapter="pirate"))
    assert (asked.text(), asked.started.cached_tokens) == (poet, 0)


def test_the_default_adapter_is_for_those_who_name_none(model: Any, folders: dict[str, Path]) -> None:
    driver = Driver(model, ToyLanguage(NEVER), default_adapter="pirate")
    assert driver.answer(complete("abc")).last.adapter is None  # type: ignore[union-attr]
    driver.answer(MountAdapter(source(folders["pirate"])))
    written = [driver.answer(complete("abc", adapter=name)).last.adapter for name in ("", "none")]  # type: ignore[union-attr]
    assert written == ["pirate", None]
    driver.answer(UnmountAdapter("pirate"))


@pytest.mark.parametrize(("adapter", "param"), [("pirat", "adapter"), ("PIRATE", "adapter"), ("a" * 300, "adapter")])
def test_an_adapter_that_is_not_there_is_named(driver: Driver, adapter: str, param: str) -> None:
    asked = driver.ask(chat("Hello", adapter=adapter))
    assert refusal(asked) == (Kind.UNKNOWN_ADAPTER, param)
    assert isinstance(asked.last, Failed)
    assert asked.last.message == f"there is no adapter {adapter[:100]!r} here: mounted are pirate, poet"


def test_a_name_is_mounted_once_and_unmounted_once(driver: Driver, folders: dict[str, Path]) -> None:
    assert refusal(driver.ask(MountAdapter(source(folders["poet"], "pirate")))) == (Kind.INVALID_VALUE, "id")
    driver.answer(UnmountAdapter("pirate"))
    assert refusal(driver.ask(UnmountAdapter("pirate"))) == (Kind.UNKNOWN_ADAPTER, None)


def test_no_more_are_mounted_than_there_is_room_for(driver: Driver, folders: dict[str, Path]) -> None:
    for number in range(30):
        assert isinstance(driver.answer(MountAdapter(source(folders["poet"], f"poet-{number}"))).last, Mounted)
    assert refusal(driver.ask(MountAdapter(source(folders["poet"], "one-more")))) == (Kind.INVALID_VALUE, "id")


def test_a_job_that_fails_or_is_cancelled_lets_its_adapter_go(model: Any, driver: Driver) -> None:
    language: Any = driver.language
    language.explode = True
    failed = driver.answer(complete("abc", adapter="pirate"))
    language.explode = False
    assert refusal(failed)[0] is Kind.INTERNAL_ERROR
    cancelled = driver.ask(complete("abc", adapter="pirate"))
    driver.steps(3)
    driver.engine.cancel(cancelled.handle)
    driver.answer(complete("abc", adapter="pirate"))
    driver.answer(UnmountAdapter("pirate"))
    driver.answer(UnmountAdapter("poet"))
    assert {type(module).__name__ for _, module in model.named_modules()} & {"AdaptedLinear"} == set()


@pytest.mark.parametrize("default", ["", "broken"])
def test_at_the_start_only_the_default_adapter_is_needed(
    model: Any, folders: dict[str, Path], tmp_path: Path, default: str
) -> None:
    from workers.llm.adapters.mounts import mounted

    sources = (AdapterSource("broken", str(tmp_path), "broken"), source(folders["poet"]))
    settings = LlmSettings("model", "/data", adapters=sources, default_adapter=default)
    if default:
        with pytest.raises(ModelNotConfigured, match="adapter 'broken' cannot be mounted: it has no adapter_config"):
            mounted(model, settings, gone=lambda _: None)
        return
    mounts = mounted(model, settings, gone=lambda _: None)
    assert [adapter.source.id for adapter in mounts.do(ListAdapters()).adapters] == ["poet"]
    mounts.do(UnmountAdapter("poet"))


def test_a_failure_to_mount_changes_nothing(model: Any, driver: Driver, tmp_path: Path) -> None:
    before = [module for _, module in model.named_modules()]
    sizes = {"model.layers.0.mlp.down_proj": (64, 32)}
    wrong = save_mlx_lm(tmp_path / "wrong", sizes | {"model.layers.1.mlp.down_proj": (64, 33)})
    with pytest.raises(InvalidValue):
        driver.mounts.do(MountAdapter(source(wrong)))
    assert all(one is other for one, (_, other) in zip(before, model.named_modules(), strict=True))
    assert ids(driver) == ["pirate", "poet"]


def test_counting_refuses_an_adapter_that_is_not_there(driver: Driver) -> None:
    assert refusal(driver.ask(CountTokens(chat("Hello", adapter="nobody")))) == (Kind.UNKNOWN_ADAPTER, "adapter")
