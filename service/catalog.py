"""Which model serves a name, and which models there are: the configured ones and those in the local hub cache.

Reads the cache's small files; loads no model and asks no network.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from protocol.errors import ModelNotConfigured, ModelNotFound, WrongModelKind
from protocol.events import GenDefaults, Model, ModelKind

log = logging.getLogger("starling.catalog")

SPEECH_NAMES = frozenset(
    (
        "whisper-1",
        "gpt-transcribe",
        "gpt-4o-transcribe",
        "gpt-4o-transcribe-diarize",
        "gpt-4o-mini-transcribe",
        "gpt-4o-mini-transcribe-2025-12-15",
    )
)
"""OpenAI's names for speech models: whoever asks for one of them means ours."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_WEIGHTS = ("weights.npz", "weights.safetensors", "model.safetensors", "model.safetensors.index.json")


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    chat_completions: bool = False
    transcription: bool = False
    translation: bool = False
    embeddings: bool = False
    adapters: bool = False
    tools: bool = False
    structured_outputs: bool = False


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `GET /v1/models`. `created`: seconds since 1970, of the local copy."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["starling"] = "starling"
    configured: bool
    resident: bool
    capabilities: Capabilities
    transcription: bool | UnsetType = UNSET
    """There, and true, for speech models only."""
    context_window: int | UnsetType = UNSET
    """This and the next are known of a language model that is loaded."""
    gen_defaults: GenDefaults | UnsetType = UNSET


@dataclass(frozen=True)
class Catalog:
    """`whisper` and `llm` as configured (llm empty: none); `started`: when this service was."""

    whisper: str
    llm: str
    strict: bool
    started: int

    @property
    def speech_id(self) -> str:
        return public_id(self.whisper)

    @property
    def llm_id(self) -> str:
        """Empty: there is none."""
        return public_id(self.llm) if self.llm else ""

    def is_speech(self, name: str) -> bool:
        return name in (self.speech_id, self.whisper) or name in SPEECH_NAMES

    def resolve(self, name: str) -> str:
        """The id of the speech model that serves `name`. It may read small files.

        Raises WrongModelKind for a model known to be of another kind, ModelNotFound in strict mode.
        """
        if not name or self.is_speech(name):
            return self.speech_id
        if (self.llm and name in (self.llm, self.llm_id)) or _kind_in_cache(name) == "other":
            raise WrongModelKind(f"the model {name[:100]!r} is no speech model", param="model")
        if self.strict:
            raise ModelNotFound(
                f"there is no speech model {name[:100]!r} here; this server has {self.speech_id}", param="model"
            )
        return self.speech_id

    def resolve_llm(self, name: str) -> str:
        """The id of the language model that serves `name`. It may read small files.

        Raises WrongModelKind for a speech model, ModelNotConfigured when there is no language model, ModelNotFound in
        strict mode.
        """
        if name and (not self.llm or name not in (self.llm, self.llm_id)):
            # Whisper's models are all called so, and nobody means another kind by it.
            if self.is_speech(name) or "whisper" in name.lower() or _kind_in_cache(name) == "whisper":
                raise WrongModelKind(f"the model {name[:100]!r} is no language model", param="model")
            if self.strict and self.llm:
                raise ModelNotFound(
                    f"there is no language model {name[:100]!r} here; this server has {self.llm_id}", param="model"
                )
        if not self.llm:
            raise ModelNotConfigured(
                "no language model is configured: start the service with --llm-model and a folder, a Hugging Face id "
                "or smollm2-135m-instruct"
            )
        return self.llm_id

    def listing(self, whisper: Model | None, llm: Model | None) -> list[Listed]:
        """The configured models, as far as loaded, then those in the cache. It reads the cache's folders."""
        translates = whisper.translates if whisper else _translates(self.speech_id, {})
        configured = [_speech(self.speech_id, self.started, translates, configured=True, resident=whisper is not None)]
        if self.llm:
            configured.append(_language(self.llm_id, self.started, configured=True, loaded=llm))
        named = {listed.id for listed in configured}
        return [*configured, *(listed for listed in _cached() if listed.id not in named)]

    def find(self, name: str, whisper: Model | None, llm: Model | None) -> Listed:
        """By id or alias. Raises ModelNotFound."""
        wanted = self.speech_id if self.is_speech(name) else self.llm_id if self.llm and name == self.llm else name
        for listed in self.listing(whisper, llm):
            if listed.id == wanted:
                return listed
        raise ModelNotFound(f"there is no model {name[:100]!r} here")


def _speech(model: str, created: int, translates: bool, *, configured: bool = False, resident: bool = False) -> Listed:
    return Listed(
        id=model,
        created=created,
        configured=configured,
        resident=resident,
        capabilities=Capabilities(transcription=True, translation=translates),
        transcription=True,
    )


def _language(model: str, created: int, *, configured: bool = False, loaded: Model | None = None) -> Listed:
    return Listed(
        id=model,
        created=created,
        configured=configured,
        resident=loaded is not None,
        capabilities=Capabilities(chat_completions=True, tools=True),
        context_window=loaded.context_window if loaded else UNSET,
        gen_defaults=(loaded.gen_defaults or GenDefaults()) if loaded else UNSET,
    )


def public_id(model: str) -> str:
    """A hub id or a starter's name as it is; of a folder only its own name, for clients need no paths of ours."""
    path = Path(model).expanduser()
    return model if _HUB_ID.fullmatch(model) and not path.is_dir() else path.resolve().name


def _cached() -> Iterable[Listed]:
    """The models in the Hugging Face cache that could serve, by id."""
    # Late: it takes a tenth of a second, which only those pay who ask for the list.
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        if repo.repo_type != "model":
            continue
        for revision in sorted(repo.revisions, key=lambda revision: revision.last_modified, reverse=True):
            files = {file.file_name: file.file_path for file in revision.files}
            shape = _shape(files.get("config.json"))
            kind = _kind(shape) if any(name in files for name in _WEIGHTS) else None
            if kind == "whisper":
                yield _speech(repo.repo_id, int(revision.last_modified), _translates(repo.repo_id, shape))
                break
            if kind == "llm":
                yield _language(repo.repo_id, int(revision.last_modified))
                break


def _kind_in_cache(name: str) -> Literal["whisper", "other"] | None:
    """What the cache holds under this id; None where that is not known."""
    if not _HUB_ID.fullmatch(name) or ".." in name or "--" in name:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    shape = _shape(Path(found)) if isinstance(found, str) else {}
    if not shape:
        return None
    return "whisper" if _is_whisper(shape) else "other"


def _kind(shape: dict[str, Any]) -> ModelKind | None:
    """Of a model that a worker could load."""
    if _is_whisper(shape):
        return "whisper"
    # Looked up without an import: mlx_lm would bring all of MLX into this process.
    found, architecture = find_spec("mlx_lm"), str(shape.get("model_type", ""))
    if found is None or found.origin is None or not architecture.isidentifier():
        return None
    return "llm" if (Path(found.origin).parent / "models" / f"{architecture}.py").is_file() else None


def _shape(config: Path | None) -> dict[str, Any]:
    """A model's config.json; empty when there is none that can be read."""
    if config is None:
        return {}
    try:
        return msgspec.json.decode(config.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        log.debug("%s cannot be read: %s", config, error)
        return {}


def _is_whisper(shape: dict[str, Any]) -> bool:
    """OpenAI's own layout, which MLX models keep, or that of transformers."""
    return shape.get("model_type") == "whisper" or {"n_audio_ctx", "n_text_layer"} <= shape.keys()


def _translates(model: str, shape: dict[str, Any]) -> bool:
    """Not English-only, and not distilled or turbo: their decoders, shorter than the encoder, never learnt it."""
    encoder = shape.get("n_audio_layer", shape.get("encoder_layers"))
    decoder = shape.get("n_text_layer", shape.get("decoder_layers"))
    english = shape.get("n_vocab", shape.get("vocab_size")) == 51864
    named = any(mark in model.lower() for mark in (".en", "turbo", "distil"))
    return not (named or english or encoder != decoder)
