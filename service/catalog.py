"""Which model serves a name, and which models there are: the configured ones and those in the local hub cache.

Reads the cache's small files; loads no model and asks no network.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from protocol.errors import ModelNotConfigured, ModelNotFound, WrongModelKind
from protocol.events import GenDefaults, Model, ModelKind
from service.names import HUB_ID

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

EMBEDDING_NAMES = frozenset(("text-embedding-3-small", "text-embedding-3-large", "text-embedding-ada-002"))
"""The same of models for embeddings."""

ENCODERS = frozenset(("bert", "roberta", "xlm-roberta", "camembert"))
"""model_type of the models that make embeddings and nothing else (workers/embed/files.py)."""

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
    """Known of a language model once it has been loaded, as the next is; and of one for embeddings."""
    gen_defaults: GenDefaults | UnsetType = UNSET


@dataclass(frozen=True)
class Loaded:
    """What the service knows of a configured model from its worker."""

    model: Model | None
    """As it said when it had loaded, also long ago."""
    resident: bool
    """In memory now."""


UNKNOWN = Loaded(None, resident=False)


Kind = Literal["speech", "language", "embedding"]


@dataclass(frozen=True)
class Catalog:
    """The configured models by their ids, the default of each kind first, as they were configured; all but `speech`
    may be empty.

    `started`: when this service was; `aliases`: the ids that other names stand for.
    """

    speech: Mapping[str, str]
    llm: Mapping[str, str]
    strict: bool
    started: int
    aliases: Mapping[str, str] = field(default_factory=dict)
    embedding: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, name: str) -> str:
        """The id of the speech model that serves `name`. It may read small files.

        Raises WrongModelKind for a model known to be of another kind, ModelNotFound in strict mode.
        """
        return self.named_speech(name) or self._default("speech", name)

    def resolve_llm(self, name: str) -> str:
        """The id of the language model that serves `name`. It may read small files.

        Raises WrongModelKind for a speech model, ModelNotConfigured when there is no language model, ModelNotFound in
        strict mode.
        """
        if (named := self.named_llm(name)) is not None:
            return named
        if not self.llm:
            raise ModelNotConfigured(
                "no language model is configured: start the service with --llm-model and a folder, a Hugging Face id "
                "or smollm2-135m-instruct"
            )
        return self._default("language", name)

    def resolve_embedding(self, name: str) -> str:
        """The id of the model that makes embeddings for `name`: one for them alone, or a language model. It may read
        small files.

        Raises WrongModelKind for a speech model, ModelNotConfigured when there is neither, ModelNotFound in strict
        mode.
        """
        id = self._named(name)
        if id in self.speech or (id is None and _is_called_speech(name)):
            raise WrongModelKind(f"the model {name[:100]!r} makes no embeddings", param="model")
        if id is not None:
            return id
        if not self.embedding and not self.llm:
            raise ModelNotConfigured(
                "no model for embeddings is configured: start the service with --embedding-model and a folder, a "
                "Hugging Face id or all-minilm-l6-v2"
            )
        return self._default("embedding", "" if name in EMBEDDING_NAMES else name)

    def named_speech(self, name: str) -> str | None:
        """The id of the speech model of that name; None: it names none that is configured. Raises WrongModelKind."""
        id = self._named(name)
        if id is None and name in SPEECH_NAMES:
            return next(iter(self.speech))
        if id in self.llm or id in self.embedding or (id is None and _kind_in_cache(name) in ("encoder", "other")):
            raise WrongModelKind(f"the model {name[:100]!r} is no speech model", param="model")
        return id

    def named_llm(self, name: str) -> str | None:
        """As `named_speech`, of language models."""
        id = self._named(name)
        if id in self.speech or id in self.embedding or (id is None and _is_called_otherwise(name)):
            raise WrongModelKind(f"the model {name[:100]!r} is no language model", param="model")
        return id

    def _named(self, name: str) -> str | None:
        """The id that a name stands for: an id or an alias, or a model as it was configured."""
        all_models = (self.speech, self.llm, self.embedding)
        ids = (id for models in all_models for id, given in models.items() if name in (id, given))
        return self.aliases.get(name) or next(ids, None)

    def _default(self, kind: Kind, name: str) -> str:
        """The first of a kind, for a name that means none of them. Raises ModelNotFound in strict mode."""
        by_kind = {"speech": self.speech, "language": self.llm, "embedding": self.embedding or self.llm}
        models = by_kind[kind]
        if name and self.strict:
            raise absent(kind, name, models)
        return next(iter(models))

    def listing(self, loaded: Mapping[str, Loaded]) -> list[Listed]:
        """The configured models, with what is in `loaded` under their ids, then those in the cache, whose folders it
        reads."""
        configured = [self._listed(id, loaded.get(id, UNKNOWN)) for id in (*self.speech, *self.llm, *self.embedding)]
        named = {listed.id for listed in configured}
        return [*configured, *(listed for listed in _cached() if listed.id not in named)]

    def _listed(self, id: str, loaded: Loaded) -> Listed:
        if id in self.llm:
            return _language(id, self.started, configured=True, loaded=loaded)
        if id in self.embedding:
            return _embedding(id, self.started, configured=True, loaded=loaded)
        translates = loaded.model.translates if loaded.model else _translates(id, {})
        return _speech(id, self.started, translates, configured=True, resident=loaded.resident)

    def find(self, name: str, loaded: Mapping[str, Loaded]) -> Listed:
        """By id or alias. Raises ModelNotFound."""
        wanted = self._named(name) or name
        if wanted in SPEECH_NAMES:
            wanted = next(iter(self.speech))
        elif wanted in EMBEDDING_NAMES:
            wanted = next(iter(self.embedding or self.llm), wanted)
        for listed in self.listing(loaded):
            if listed.id == wanted:
                return listed
        raise ModelNotFound(f"there is no model {name[:100]!r} here")


def _is_called_speech(name: str) -> bool:
    """Whisper's models are all called so, and nobody means another kind by it."""
    return name in SPEECH_NAMES or "whisper" in name.lower() or _kind_in_cache(name) == "whisper"


def _is_called_otherwise(name: str) -> bool:
    """Whether it is no language model by its name, or as far as the cache knows it."""
    return _is_called_speech(name) or name in EMBEDDING_NAMES or _kind_in_cache(name) == "encoder"


def absent(kind: Kind, name: str, models: Iterable[str]) -> ModelNotFound:
    """The refusal of a name that none of `models` has."""
    here = ", ".join(models)
    return ModelNotFound(f"there is no {kind} model {name[:100]!r} here; this server has {here}", param="model")


def _speech(model: str, created: int, translates: bool, *, configured: bool = False, resident: bool = False) -> Listed:
    return Listed(
        id=model,
        created=created,
        configured=configured,
        resident=resident,
        capabilities=Capabilities(transcription=True, translation=translates),
        transcription=True,
    )


def _language(model: str, created: int, *, configured: bool = False, loaded: Loaded = UNKNOWN) -> Listed:
    known = loaded.model
    return Listed(
        id=model,
        created=created,
        configured=configured,
        resident=loaded.resident,
        capabilities=Capabilities(
            chat_completions=True,
            # What is not known yet most likely does.
            embeddings=known is None or known.embedding_width > 0,
            adapters=True,
            tools=True,
            structured_outputs=True,
        ),
        context_window=known.context_window if known else UNSET,
        gen_defaults=(known.gen_defaults or GenDefaults()) if known else UNSET,
    )


def _embedding(model: str, created: int, *, configured: bool = False, loaded: Loaded = UNKNOWN) -> Listed:
    return Listed(
        id=model,
        created=created,
        configured=configured,
        resident=loaded.resident,
        capabilities=Capabilities(embeddings=True),
        context_window=loaded.model.context_window if loaded.model else UNSET,
    )


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
            if kind == "embedding":
                yield _embedding(repo.repo_id, int(revision.last_modified))
                break


def _kind_in_cache(name: str) -> Literal["whisper", "encoder", "other"] | None:
    """What the cache holds under this id; None where that is not known."""
    if not HUB_ID.fullmatch(name) or ".." in name or "--" in name:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    shape = _shape(Path(found)) if isinstance(found, str) else {}
    if not shape:
        return None
    return "whisper" if _is_whisper(shape) else "encoder" if shape.get("model_type") in ENCODERS else "other"


def _kind(shape: dict[str, Any]) -> ModelKind | None:
    """Of a model that a worker could load."""
    if _is_whisper(shape):
        return "whisper"
    if shape.get("model_type") in ENCODERS:
        return "embedding"
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
