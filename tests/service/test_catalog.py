"""Names of models, and those that lie in the hub cache. The cache here is a folder of small files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.errors import ModelNotConfigured, ModelNotFound, WrongModelKind
from protocol.events import GenDefaults, Model
from service.catalog import Catalog, Loaded
from service.names import by_alias, by_id, public_id

WHISPER = {"n_mels": 80, "n_audio_ctx": 1500, "n_audio_layer": 4, "n_text_layer": 4, "n_vocab": 51865}


def catalog(*speech: str, llm: str = "", strict: bool = False, **aliases: str) -> Catalog:
    names = by_id(speech or ("whisper-base",))
    return Catalog(names, by_id(llm.split()), strict, 1_700_000_000, aliases)


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
    put(cache, "mlx-community/unheard-of", {"model_type": "unheard_of"}, "model.safetensors")
    put(cache, "mlx-community/broken", "{", "model.safetensors")
    put(cache, "mlx-community/none", None, "model.safetensors")
    listed = catalog().listing({})
    assert [(each.id, each.configured, each.resident, each.capabilities.translation) for each in listed] == [
        ("whisper-base", True, False, True),
        ("mlx-community/qwen", False, False, False),
        ("mlx-community/whisper-tiny", False, False, True),
        ("mlx-community/whisper-tiny.en-mlx", False, False, False),
        ("openai/whisper-large-v3-turbo", False, False, False),
    ]
    assert catalog().find("mlx-community/whisper-tiny", {}).object == "model"


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
    assert [each.id for each in catalog().listing({})] == ["whisper-base"]


def test_a_loaded_model_says_itself_what_it_can(cache: Path) -> None:
    loaded = Model("whisper-base", "whisper", ("en",), False, 1, "float32")
    (listed,) = catalog().listing({"whisper-base": Loaded(loaded, resident=True)})
    assert (listed.resident, listed.capabilities.translation, listed.created) == (True, False, 1_700_000_000)


@pytest.mark.parametrize("name", ["whisper-tiny.en", "openai/whisper-large-v3-turbo", "distil-whisper/distil-large-v3"])
def test_until_it_is_loaded_its_name_says_that_it_cannot_translate(cache: Path, name: str) -> None:
    assert catalog(name).listing({})[0].capabilities.translation is False


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


def test_a_loaded_language_model_tells_its_window_and_how_it_samples(cache: Path) -> None:
    loaded = Model("qwen", "llm", (), False, 1, "float32", 8192, GenDefaults(0.7, 0.9, 40))
    _, listed = catalog(llm="qwen").listing({"qwen": Loaded(loaded, resident=True)})
    assert json.loads(msgspec.json.encode(listed)) == {
        "id": "qwen",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "starling",
        "configured": True,
        "resident": True,
        "capabilities": {
            "chat_completions": True,
            "transcription": False,
            "translation": False,
            "embeddings": False,
            "adapters": True,
            "tools": True,
            "structured_outputs": True,
        },
        "context_window": 8192,
        "gen_defaults": {"temperature": 0.7, "top_p": 0.9, "top_k": 40},
    }


def test_a_language_model_that_is_not_loaded_tells_its_kind_alone(cache: Path) -> None:
    _, listed = catalog(llm="x/qwen").listing({})
    body = json.loads(msgspec.json.encode(listed))
    assert (body["id"], body["resident"], body["capabilities"]["chat_completions"]) == ("x/qwen", False, True)
    assert body.keys() & {"transcription", "context_window", "gen_defaults"} == set()
    assert catalog(llm="x/qwen").find("x/qwen", {}) == listed


def test_a_speech_model_is_listed_as_one(cache: Path) -> None:
    (listed,) = catalog().listing({})
    body = json.loads(msgspec.json.encode(listed))
    assert (body["transcription"], body["capabilities"]["transcription"]) == (True, True)
    assert body["capabilities"]["chat_completions"] is False


@pytest.mark.parametrize("name", ["", "qwen", "gpt-4o", "mlx-community/qwen", "../../etc"])
def test_any_name_of_no_speech_model_is_served_by_the_language_model(cache: Path, name: str) -> None:
    assert catalog(llm="qwen").resolve_llm(name) == "qwen"


@pytest.mark.parametrize(
    "name", ["whisper-1", "whisper-base", "gpt-4o-transcribe", "openai/whisper-tiny", "mlx-community/ear"]
)
def test_a_speech_model_does_not_chat(cache: Path, name: str) -> None:
    put(cache, "mlx-community/ear", WHISPER, "weights.npz")
    for made in (catalog(llm="qwen"), catalog()):
        with pytest.raises(WrongModelKind, match="no language model"):
            made.resolve_llm(name)


def test_strict_names_of_language_models(cache: Path) -> None:
    strict = catalog(llm="/models/qwen", strict=True)
    assert (strict.resolve_llm(""), strict.resolve_llm("qwen"), strict.resolve_llm("/models/qwen")) == ("qwen",) * 3
    with pytest.raises(ModelNotFound, match="'gpt-4o'"):
        strict.resolve_llm("gpt-4o")


def test_no_language_model_says_how_to_get_one(cache: Path) -> None:
    for strict in (True, False):
        with pytest.raises(ModelNotConfigured, match="--llm-model"):
            catalog(strict=strict).resolve_llm("gpt-4o")


def test_each_of_several_models_is_found_by_its_id_its_path_and_its_aliases(cache: Path) -> None:
    several = catalog("whisper-base", "/models/large", llm="qwen x/llama", dictation="large", **{"gpt-4o": "x/llama"})
    names = ("large", "/models/large", "dictation", "whisper-1", "", "whatever")
    assert [several.resolve(name) for name in names] == ["large", "large", "large", *["whisper-base"] * 3]
    assert [several.resolve_llm(name) for name in ("x/llama", "gpt-4o", "gpt-5", "")] == ["x/llama"] * 2 + ["qwen"] * 2
    assert several.find("dictation", {}).id == "large"


def test_a_model_of_the_other_kind_is_refused_by_any_of_its_names(cache: Path) -> None:
    several = catalog("whisper-base", "/models/large", llm="qwen x/llama", dictation="large", **{"gpt-4o": "x/llama"})
    for name in ("qwen", "x/llama", "gpt-4o"):
        with pytest.raises(WrongModelKind):
            several.resolve(name)
    for name in ("large", "/models/large", "dictation", "whisper-1"):
        with pytest.raises(WrongModelKind):
            several.resolve_llm(name)


def test_an_alias_goes_before_what_openai_calls_so(cache: Path) -> None:
    assert catalog("whisper-base", "large", **{"whisper-1": "large"}).resolve("whisper-1") == "large"


def test_a_strict_refusal_names_all_that_there_are(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match="this server has whisper-base, large"):
        catalog("whisper-base", "large", strict=True).resolve("whatever")


def test_several_models_are_listed_once_each_and_resident_or_not(cache: Path) -> None:
    put(cache, "x/llama", {"model_type": "llama"}, "model.safetensors")
    tiny = Model("tiny", "whisper", ("en",), False, 1, "float32")
    listed = catalog("whisper-base", "tiny", llm="qwen x/llama").listing({"tiny": Loaded(tiny, resident=False)})
    assert [(each.id, each.configured, each.resident, each.capabilities.translation) for each in listed] == [
        ("whisper-base", True, False, True),
        ("tiny", True, False, False),
        ("qwen", True, False, False),
        ("x/llama", True, False, False),
    ]


def test_a_model_that_is_given_twice_is_one() -> None:
    assert by_id(["a/x", "a/y", "a/x"]) == {"a/x": "a/x", "a/y": "a/y"}


def test_an_alias_may_name_a_model_by_its_path_or_repeat_its_id() -> None:
    assert by_alias(["a = /models/m", "b=m", "m=m"], ["/models/m"]) == {"a": "m", "b": "m", "m": "m"}
