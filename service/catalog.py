"""Which model serves a name, and which models there are: the configured one and those in the local hub cache.

Reads the cache's small files; loads no model and asks no network.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from protocol.errors import ModelNotFound, WrongModelKind
from protocol.events import Model

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
    transcription: bool = True
    translation: bool
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
    transcription: bool = True


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

    def is_speech(self, name: str) -> bool:
        return name in (self.speech_id, self.whisper) or name in SPEECH_NAMES

    def resolve(self, name: str) -> str:
        """The id of the speech model that serves `name`. It may read small files.

        Raises WrongModelKind for a model known to be of another kind, ModelNotFound in strict mode.
        """
        if not name or self.is_speech(name):
            return self.speech_id
        if (self.llm and name in (self.llm, public_id(self.llm))) or _other_kind_in_cache(name):
            raise WrongModelKind(f"the model {name[:100]!r} is no speech model", param="model")
        if self.strict:
            raise ModelNotFound(
                f"there is no speech model {name[:100]!r} here; this server has {self.speech_id}", param="model"
            )
        return self.speech_id

    def listing(self, loaded: Model | None) -> list[Listed]:
        """The configured model, then those in the cache. It reads the cache's folders."""
        translates = loaded.translates if loaded else _translates(self.speech_id, {})
        configured = Listed(
            id=self.speech_id,
            created=self.started,
            configured=True,
            resident=loaded is not None,
            capabilities=Capabilities(translation=translates),
        )
        return [configured, *(listed for listed in _cached() if listed.id != configured.id)]

    def find(self, name: str, loaded: Model | None) -> Listed:
        """By id or alias. Raises ModelNotFound."""
        wanted = self.speech_id if self.is_speech(name) else name
        for listed in self.listing(loaded):
            if listed.id == wanted:
                return listed
        raise ModelNotFound(f"there is no model {name[:100]!r} here")


def public_id(model: str) -> str:
    """A hub id or a starter's name as it is; of a folder only its own name, for clients need no paths of ours."""
    path = Path(model).expanduser()
    return model if _HUB_ID.fullmatch(model) and not path.is_dir() else path.resolve().name


def _cached() -> Iterable[Listed]:
    """The Whisper models in the Hugging Face cache, by id."""
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
            if _is_whisper(shape) and any(name in files for name in _WEIGHTS):
                yield Listed(
                    id=repo.repo_id,
                    created=int(revision.last_modified),
                    configured=False,
                    resident=False,
                    capabilities=Capabilities(translation=_translates(repo.repo_id, shape)),
                )
                break


def _other_kind_in_cache(name: str) -> bool:
    """Whether the cache holds a model of this id that is no Whisper. Not knowing is no."""
    if not _HUB_ID.fullmatch(name) or ".." in name or "--" in name:
        return False
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    if not isinstance(found, str):
        return False
    shape = _shape(Path(found))
    return bool(shape) and not _is_whisper(shape)


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
