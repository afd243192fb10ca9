"""Downloads from the hub as `starling get` makes them: real HTTP, a real cache, and the words for every refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.hub_server import SHA, Hub, serving
from workers import hub

pytestmark = pytest.mark.port

CONFIG = json.dumps(
    {
        "model_type": "whisper",
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "d_model": 384,
        "encoder_attention_heads": 6,
        "encoder_layers": 4,
        "vocab_size": 51865,
        "max_target_positions": 448,
        "decoder_attention_heads": 6,
        "decoder_layers": 4,
    }
).encode()
WEIGHTS = bytes(range(256)) * 16384  # 4 MiB
PICKLE = b"never to be fetched"
TINY = "openai/whisper-tiny"
TINY_FILES = {
    "config.json": CONFIG,
    "generation_config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": PICKLE,
    "model.fp32.safetensors": PICKLE,
    "flax_model.msgpack": PICKLE,
    "onnx/model.onnx": PICKLE,
    "README.md": b"# tiny",
}


def run(folder: Path, *arguments: str, url: str = "http://127.0.0.1:9", **environment: str) -> tuple[int, str, str]:
    """Exit status, stdout, stderr of `python -m workers.hub`, with the hub at `url` and its cache in `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "workers.hub", *arguments, "--data-dir", str(folder / "data")],
        capture_output=True,
        text=True,
        timeout=90,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "HF_ENDPOINT": url,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **environment,
        },
    )
    return done.returncode, done.stdout, done.stderr


def test_get_fetches_one_layout_and_nothing_that_is_pickled(tmp_path: Path) -> None:
    with serving(Hub({TINY: TINY_FILES})) as server:
        status, out, err = run(tmp_path, "get", TINY, url=server.url)
    folder = Path(out.strip())
    assert (status, folder.name) == (0, SHA), err
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert {name for name, _ in server.fetched} == {"config.json", "generation_config.json", "model.safetensors"}


def test_get_reports_the_bytes_that_came(tmp_path: Path) -> None:
    with serving(Hub({TINY: TINY_FILES})) as server:
        _, _, err = run(tmp_path, "get", TINY, url=server.url)
    assert err.splitlines()[0] == f"looking for {TINY} on the Hugging Face hub"
    assert err.splitlines()[-1] == f"downloading {TINY} [{'#' * 30}] 100% of 4 MB"


def test_shards_are_fetched_with_their_index(tmp_path: Path) -> None:
    index = json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    )
    files = {
        "config.json": CONFIG,
        "model.safetensors.index.json": index.encode(),
        "model-00001-of-00002.safetensors": b"one",
        "model-00002-of-00002.safetensors": b"two",
        "model.fp32-00001-of-00001.safetensors": PICKLE,
    }
    with serving(Hub({TINY: files})) as server:
        status, out, err = run(tmp_path, "get", TINY, url=server.url)
    assert status == 0, err
    assert sorted(file.name for file in Path(out.strip()).iterdir()) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
    weights = WEIGHTS * 6  # the client writes 10 MB at a time
    with serving(Hub({TINY: {**TINY_FILES, "model.safetensors": weights}}, cuts=1)) as server:
        status, out, err = run(tmp_path, "get", TINY, url=server.url)
    assert status == 0, err
    assert (Path(out.strip()) / "model.safetensors").read_bytes() == weights
    first, second = (start for name, start in server.fetched if name == "model.safetensors")
    assert first == 0
    assert 0 < second <= len(weights) // 2


def test_a_second_get_fetches_no_weights_again(tmp_path: Path) -> None:
    with serving(Hub({TINY: TINY_FILES})) as server:
        run(tmp_path, "get", TINY, url=server.url)
        server.fetched.clear()
        assert run(tmp_path, "get", TINY, url=server.url)[0] == 0
    assert server.fetched == []


@pytest.mark.parametrize(
    ("model", "environment", "message"),
    [
        (
            "nobody/nothing",
            {},
            "the Hugging Face hub has no model nobody/nothing, or it is private: "
            "then set HF_TOKEN and run `starling get nobody/nothing`",
        ),
        (
            "nobody/nothing",
            {"HF_TOKEN": "hf_right"},
            "the Hugging Face hub has no model nobody/nothing, or it is private: "
            "then set HF_TOKEN and run `starling get nobody/nothing`",
        ),
        (
            "gated/whisper",
            {"HF_TOKEN": "hf_wrong"},
            "gated/whisper is gated: accept its terms on the hub, set HF_TOKEN to a token of yours "
            "and run `starling get gated/whisper`",
        ),
        (
            "openai/whisper-tiny",
            {"HF_HUB_OFFLINE": "1"},
            "openai/whisper-tiny is not on this machine and the hub is off limits (offline): "
            "run `starling get openai/whisper-tiny` online",
        ),
        ("some/clip", {}, "some/clip is no language model that mlx-lm knows but 'clip'"),
        (
            "old/whisper",
            {},
            "old/whisper has no config.json and safetensors or npz weights that could be read",
        ),
        ("not an id", {}, "'not an id' is no Hugging Face id (owner/name) and no starter"),
    ],
)
def test_a_model_that_cannot_be_had_is_explained(
    tmp_path: Path, model: str, environment: dict[str, str], message: str
) -> None:
    files = {
        TINY: TINY_FILES,
        "gated/whisper": TINY_FILES,
        "some/clip": {"config.json": b'{"model_type": "clip"}', "model.safetensors": WEIGHTS},
        "old/whisper": {"config.json": CONFIG, "pytorch_model.bin": PICKLE},
    }
    with serving(Hub(files, gated=("gated/whisper",))) as server:
        status, out, err = run(tmp_path, "get", model, url=server.url, **environment)
    assert (status, out) == (1, "")
    assert err.splitlines()[-1] == message


def test_a_token_opens_a_gated_model(tmp_path: Path) -> None:
    with serving(Hub({"gated/whisper": TINY_FILES}, gated=("gated/whisper",))) as server:
        assert run(tmp_path, "get", "gated/whisper", url=server.url, HF_TOKEN="hf_right")[0] == 0


def test_without_a_network_it_says_so_and_names_the_command(tmp_path: Path) -> None:
    status, _, err = run(tmp_path, "get", TINY)
    assert status == 1
    assert err.splitlines()[-1] == (
        f"{TINY} is not whole on this machine and the Hugging Face hub cannot be reached; "
        f"with a network, `starling get {TINY}` fetches the rest of it"
    )


def test_list_names_the_starters_and_the_models_of_the_cache(tmp_path: Path) -> None:
    files = {TINY: TINY_FILES, "broken/whisper": {"config.json": CONFIG, "pytorch_model.bin": PICKLE}}
    with serving(Hub(files)) as server:
        run(tmp_path, "get", TINY, url=server.url)
        run(tmp_path, "get", "broken/whisper", url=server.url)
    status, out, _ = run(tmp_path, "list")
    entries = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [(entry["id"], entry["source"], entry["kind"], entry["ready"]) for entry in entries] == [
        ("whisper-base", "starter", "whisper", False),
        ("whisper-tiny.en", "starter", "whisper", False),
        ("smollm2-135m-instruct", "starter", "llm", False),
        ("all-minilm-l6-v2", "starter", "embedding", False),
        (TINY, "hub", "whisper", True),
    ]
    assert entries[4]["size_bytes"] == len(CONFIG) + len(b"{}") + len(WEIGHTS)
    assert Path(entries[4]["path"]).name == SHA


def test_list_without_a_cache_is_the_starters(tmp_path: Path) -> None:
    _, out, _ = run(tmp_path, "list")
    assert [json.loads(line)["id"] for line in out.splitlines()] == [
        "whisper-base",
        "whisper-tiny.en",
        "smollm2-135m-instruct",
        "all-minilm-l6-v2",
    ]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("openai/whisper-tiny", True),
        ("mlx-community/whisper-large-v3-turbo-q4", True),
        ("whisper-base", False),
        ("/models/whisper", False),
        ("./models/whisper", False),
        ("a/b/c", False),
        ("", False),
    ],
)
def test_an_id_has_an_owner_and_a_name(model: str, expected: bool) -> None:
    assert hub.is_id(model) is expected
