"""Names of models, and those that lie in the hub cache. The cache here is a folder of small files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ModelNotFound, WrongModelKind
from protocol.events import Model
from service.catalog import Catalog, public_id

WHISPER = {"n_mels": 80, "n_audio_ctx": 1500, "n_audio_layer": 4, "n_text_layer": 4, "n_vocab": 51865}


def catalog(whisper: str = "whisper-base", llm: str = "", *, strict: bool = False) -> Catalog:
    return Catalog(whisper, llm, strict, 1_700_000_000)


def put(cache: Path, name: str, config: dict[str, Any] | str | None, weights: str | None) -> None:
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    if config is not None:
        (snapshot / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if weights is not None:
        (snapshot / weights).write_bytes(b"0" * 10)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    # Read when huggingface_hub is imported, so the environment would come too late.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path), raising=False)
    return tmp_path


def test_the_cache_lists_the_models_that_could_serve(cache: Path) -> None:
    put(cache, "mlx-community/whisper-tiny", WHISPER, "weights.npz")
    put(cache, "mlx-community/whisper-tiny.en-mlx", {**WHISPER, "n_vocab": 51864}, "weights.safetensors")
    put(
        cache,
        "openai/whisper-large-v3-turbo",
        {"model_type": "whisper", "encoder_layers": 32, "decoder_layers": 4},
        "model.safetensors",
    )
    put(cache, "whisper-base", WHISPER, "weights.npz")
    put(cache, "mlx-community/no-weights", WHISPER, None)
    put(cache, "mlx-community/qwen", {"model_type": "qwen3"}, "model.safetensors")
    put(cache, "mlx-community/broken", "{", "model.safetensors")
    put(cache, "mlx-community/none", None, "model.safetensors")
    listed = catalog().listing(None)
    assert [(each.id, each.configured, each.resident, each.capabilities.translation) for each in listed] == [
        ("whisper-base", True, False, True),
        ("mlx-community/whisper-tiny", False, False, True),
        ("mlx-community/whisper-tiny.en-mlx", False, False, False),
        ("openai/whisper-large-v3-turbo", False, False, False),
    ]
    assert catalog().find("mlx-community/whisper-tiny", None).object == "model"


def test_a_cached_model_of_another_kind_is_known_as_such(cache: Path) -> None:
    put(cache, "mlx-community/qwen", {"model_type": "qwen3"}, "model.safetensors")
    put(cache, "mlx-community/whisper-tiny", WHISPER, "weights.npz")
    put(cache, "mlx-community/broken", "{", None)
    with pytest.raises(WrongModelKind):
        catalog().resolve("mlx-community/qwen")
    for name in ("mlx-community/whisper-tiny", "mlx-community/broken", "mlx-community/unknown", "../../etc", "a/b/c"):
        assert catalog().resolve(name) == "whisper-base"


def test_there_may_be_no_cache(cache: Path) -> None:
    cache.rmdir()
    assert [each.id for each in catalog().listing(None)] == ["whisper-base"]


def test_a_loaded_model_says_itself_what_it_can(cache: Path) -> None:
    loaded = Model("whisper-base", "whisper", ("en",), False, 1, "float32")
    (listed,) = catalog().listing(loaded)
    assert (listed.resident, listed.capabilities.translation, listed.created) == (True, False, 1_700_000_000)


@pytest.mark.parametrize("name", ["whisper-tiny.en", "openai/whisper-large-v3-turbo", "distil-whisper/distil-large-v3"])
def test_until_it_is_loaded_its_name_says_that_it_cannot_translate(cache: Path, name: str) -> None:
    assert catalog(name).listing(None)[0].capabilities.translation is False


def test_a_folders_path_is_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    assert public_id(str(tmp_path / "mine")) == "mine"
    assert public_id(str(tmp_path / "not there")) == "not there"
    monkeypatch.chdir(tmp_path)
    assert public_id("mine") == "mine"
    assert public_id("./mine/") == "mine"
    assert public_id("mlx-community/whisper-tiny") == "mlx-community/whisper-tiny"


def test_strict_and_lenient(cache: Path) -> None:
    assert catalog().resolve("whatever") == "whisper-base"
    assert catalog(strict=True).resolve("gpt-4o-mini-transcribe") == "whisper-base"
    with pytest.raises(ModelNotFound, match="'whatever'"):
        catalog(strict=True).resolve("whatever")
    with pytest.raises(WrongModelKind):
        catalog(llm="qwen", strict=True).resolve("qwen")
