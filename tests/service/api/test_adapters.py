"""/v1/adapters over a scripted worker: what may be mounted, what is told, and what outlives a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidValue, UnknownAdapter
from protocol.events import Adapter, Generated, Mounted
from protocol.jobs import Chat, ListAdapters, MountAdapter, UnmountAdapter
from protocol.settings import AdapterSource, LlmSettings, MediaSettings
from service import adapters
from tests.asgi import JSON, Reply, ask
from tests.conversing import HI, READY, SAID
from tests.fakes import FakeWorker
from tests.scripted import scripted

URL = "/v1/adapters"


def adapter(id: str, path: str, folder: Path | str = "/somewhere") -> Adapter:
    return Adapter(AdapterSource(id, str(folder), path), 8, 20.0, 1234, 14)


@dataclass
class House:
    app: Any
    llm: FakeWorker
    folder: Path
    """Of all adapters."""

    def post(self, to: str = URL, /, **members: Any) -> Reply:
        return ask(self.app, "POST", to, JSON, json.dumps(members).encode())


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A folder of adapters with `pirate` and `deep/poet` in it, and ways out of it."""
    folder = tmp_path / "adapters"
    for name in ("pirate", "deep/poet"):
        (folder / name).mkdir(parents=True)
        (folder / name / "adapter_config.json").write_text("{}")
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "way-out").symlink_to(outside)
    (folder / "inside").symlink_to(folder / "pirate")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "borrowed").mkdir()
    (folder / "borrowed" / "adapters.safetensors").symlink_to(outside / "secret")

    def mounting(job: MountAdapter) -> list[Any]:
        return [Mounted((adapter("first", "first"), Adapter(job.source, 8, 20.0, 1234, 14)))]

    script = {
        MountAdapter: mounting,
        UnmountAdapter: lambda job: [Mounted(())] if job.id == "pirate" else [UnknownAdapter("no such adapter")],
        ListAdapters: [Mounted((adapter("pirate", "pirate"),))],
        Chat: [*SAID[:-1], Generated(9, 4, 3, adapter="pirate")],
    }
    llm = FakeWorker("llm", script, ready=READY)
    with scripted(tmp_path / "data", llm=llm, adapter_dir=str(folder)) as parts:
        yield House(parts.app, llm, folder)


def test_one_is_mounted_from_the_folder_and_told_without_where_that_is(house: House) -> None:
    reply = house.post(id="my.pirate-2", path="pirate")
    assert (reply.status, reply.json) == (
        200,
        {
            "id": "my.pirate-2",
            "object": "adapter",
            "path": "pirate",
            "rank": 8,
            "scale": 20.0,
            "size_bytes": 1234,
            "mounted_layers": 14,
        },
    )
    assert house.llm.jobs == [
        MountAdapter(AdapterSource("my.pirate-2", str((house.folder / "pirate").resolve()), "pirate"))
    ]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("deep/poet", "deep/poet"),
        ("./pirate/", "pirate"),
        ("deep/../pirate", "pirate"),
        ("inside", "pirate"),
        ("{root}/pirate", "pirate"),
    ],
)
def test_any_path_that_stays_inside_will_do(house: House, path: str, found: str) -> None:
    assert house.post(id="a", path=path.replace("{root}", str(house.folder))).json["path"] == found


@pytest.mark.parametrize(
    "path",
    ["..", "../outside", "pirate/../../outside", "/etc", "/", "{root}/../outside", "way-out", "way-out/x", "borrowed"],
)
def test_a_path_that_leads_out_of_the_folder_is_refused(house: House, path: str) -> None:
    reply = house.post(id="a", path=path.replace("{root}", str(house.folder)))
    assert (reply.status, reply.json["error"]["code"], reply.json["error"]["param"]) == (400, "invalid_value", "path")
    assert reply.json["error"]["message"].endswith("leads out of the folder of adapters")
    assert house.llm.jobs == []


@pytest.mark.parametrize("path", ["nothing", "pirate/adapter_config.json", "deep/nothing/more"])
def test_a_folder_that_is_not_there_is_404(house: House, path: str) -> None:
    reply = house.post(id="a", path=path)
    assert (reply.status, reply.json["error"]["code"], reply.json["error"]["param"]) == (404, "unknown_adapter", "path")


@pytest.mark.parametrize("path", ["loop", "a\0b", "x" * 300])
def test_a_path_that_cannot_be_followed_is_refused(house: House, path: str) -> None:
    reply = house.post(id="a", path=path)
    assert (reply.status, reply.json["error"]["param"]) in ((400, "path"), (404, "path"))


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({"path": "pirate"}, "missing_field", "id"),
        ({"id": "a"}, "missing_field", "path"),
        ({"id": "", "path": "pirate"}, "invalid_value", "id"),
        ({"id": "a/b", "path": "pirate"}, "invalid_value", "id"),
        ({"id": "a\n", "path": "pirate"}, "invalid_value", "id"),
        ({"id": "a" * 65, "path": "pirate"}, "invalid_value", "id"),
        ({"id": "none", "path": "pirate"}, "invalid_value", "id"),
        ({"id": 1, "path": "pirate"}, "invalid_value", "id"),
        ({"id": "a", "path": ""}, "invalid_value", "path"),
        ({"id": "a", "path": ["pirate"]}, "invalid_value", "path"),
    ],
)
def test_a_wrong_field_is_named(house: House, members: dict[str, Any], code: str, param: str) -> None:
    reply = house.post(**members)
    assert (reply.status, reply.json["error"]["code"], reply.json["error"]["param"]) == (400, code, param)


def test_without_a_folder_nothing_can_be_mounted(tmp_path: Path) -> None:
    with scripted(tmp_path, llm=FakeWorker("llm", {}, ready=READY)) as parts:
        reply = ask(parts.app, "POST", URL, JSON, b'{"id": "a", "path": "pirate"}')
    assert (reply.status, reply.json["error"]["message"]) == (
        400,
        "no folder of adapters is configured: start the service with --adapter-dir",
    )


def test_what_the_worker_refuses_keeps_its_words(house: House) -> None:
    house.llm._script = {MountAdapter: [InvalidValue("the adapter 'pirate' cannot be mounted: why", param="path")]}
    reply = house.post(id="a", path="pirate")
    assert (reply.status, reply.json["error"]["message"]) == (400, "the adapter 'pirate' cannot be mounted: why")


def test_the_list_tells_all_and_no_place(house: House) -> None:
    reply = ask(house.app, "GET", URL)
    assert [each["id"] for each in reply.json["adapters"]] == ["pirate"]
    assert "somewhere" not in reply.body.decode()


def test_one_is_unmounted_and_an_unknown_one_is_404(house: House) -> None:
    gone = ask(house.app, "DELETE", f"{URL}/pirate")
    assert (gone.status, gone.json) == (200, {"id": "pirate", "object": "adapter", "deleted": True})
    unknown = ask(house.app, "DELETE", f"{URL}/nobody")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "unknown_adapter")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/messages", {"messages": HI, "max_tokens": 5}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
def test_every_protocol_passes_the_choice_on_and_says_who_wrote(house: House, path: str, body: dict[str, Any]) -> None:
    reply = house.post(path, adapter="pirate", **body)
    (job,) = house.llm.jobs
    assert isinstance(job, Chat)
    assert (job.generation.adapter, reply.json["starling"]["adapter"]) == ("pirate", "pirate")


def test_without_a_language_model_there_are_no_adapters(tmp_path: Path) -> None:
    with scripted(tmp_path) as parts:
        replies = [ask(parts.app, "GET", URL), ask(parts.app, "DELETE", f"{URL}/x")]
    assert [(reply.status, reply.json["error"]["code"]) for reply in replies] == [(503, "model_not_configured")] * 2


def test_the_next_worker_is_told_what_is_mounted_now() -> None:
    settings = LlmSettings("model", "/data", adapters=adapters.at_start("/a/house"), default_adapter="house")
    later = adapters.learn(settings, Mounted((adapter("pirate", "pirate"),)))
    assert later == msgspec.structs.replace(settings, adapters=(AdapterSource("pirate", "/somewhere", "pirate"),))
    assert adapters.learn(settings, Generated(1, 0, 1)) is settings
    assert adapters.learn(MediaSettings(), Mounted(())) == MediaSettings()
