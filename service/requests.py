"""The typed request for a transcript: its fields, their limits and defaults, and the rules between them.

Knows what a client may ask; knows neither how it was sent nor who does the work.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta

from protocol.errors import InvalidValue, UnsupportedTask, UnsupportedValue
from protocol.events import Model
from protocol.jobs import Decoding, Task
from protocol.settings import SAMPLE_RATE
from service import forms, languages
from service.forms import Entry, Given
from service.gate import Cutting

ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]

MAX_TERM_BYTES = 16 << 10
TERMS_BYTES = 1 << 20
"""UTF-8 bytes of terms that are handed on, 128 for each of 8192. Only 223 tokens of them count, at most 28 KiB."""
MAX_TEMPERATURES = 16
PROMPT_TAIL = 32 << 10
"""Characters of a prompt that are handed on. Only its last 223 tokens count, and no token is near 140 characters."""

ALIASES = {"keywords": "vocabulary", "hotwords": "vocabulary"}

ABOUT = {
    "language": "A code, an English name or a locale; empty or `auto`: detect.",
    "languages": "Detection chooses among these; not with `language`.",
    "prompt": "What was said before, or words as they are spelt: its last tokens count.",
    "best_of": "Candidates, at temperatures over 0.",
    "patience": "Of beams: how many are looked at until the search ends.",
    "length_penalty": "Of beams and candidates. Off: likelihood for each token.",
    "condition_on_previous_text": "Each window is prompted with the text of the one before.",
    "no_speech_threshold": "A window that is likelier than this to be without speech, and failed, is silence.",
    "logprob_threshold": "A window whose tokens are less likely on average has failed.",
    "compression_ratio_threshold": "A window whose text compresses better has failed: it repeats itself.",
    "without_timestamps": "Decode text alone, without times.",
}
"""What Decoding's fields mean to a client."""

OURS = ("before", "words", "logprobs", "silence_rule", "seed")
"""Members of Decoding that follow from other fields or are the service's own; in a request they are unknown names."""


class ServerVad(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's object for `chunking_strategy`."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=10_000)] = 300
    silence_duration_ms: Annotated[int, Meta(ge=0, le=10_000)] = 200

    @property
    def cutting(self) -> Cutting:
        silence = self.silence_duration_ms * SAMPLE_RATE // 1000
        return Cutting(before=self.prefix_padding_ms * SAMPLE_RATE // 1000, after=silence, silence=silence)


AUTO = ServerVad(type="server_vad")
"""What `chunking_strategy` auto stands for."""
SURE = 0.01
"""Silero's own thresholds lie between 0 and 1; OpenAI's may be either."""


class TranscriptRequest(Decoding, frozen=True, kw_only=True):
    """A file's transcript. What Decoding has, it has under the same names and limits."""

    DETAILS: ClassVar[str] = " or with stream=true"
    """Where else than in a format's body there is room for words and log-probabilities, for messages."""

    model: str = ""
    """An id or an alias. Empty, unknown or one of OpenAI's names for speech models: the default."""
    response_format: ResponseFormat = "json"
    timestamp_granularities: tuple[Literal["segment", "word"], ...] = ()
    """`word` needs a format or a stream that has room for words."""
    stream: bool = False
    """Answer with server-sent events: each segment as soon as it is final."""
    vocabulary: Annotated[tuple[str, ...], Meta(max_length=8192)] = ()
    vad: bool = False
    """Only speech reaches Whisper; where there is none, the text is empty."""
    vad_threshold: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """The probability over which 32 ms count as speech."""
    vad_min_speech_ms: Annotated[int, Meta(ge=0, le=10_000)] = 250
    """A shorter burst is no speech."""
    vad_trim: bool = False
    """Leave out silence at the start and at the end only."""
    chunking_strategy: Literal["auto"] | ServerVad | None = None
    """Cut at silences and decode the pieces together: fastest for long files, each piece without what was before."""
    include: tuple[Literal["logprobs"], ...] = ()
    """Log-probabilities of the text's tokens."""
    faithful: bool = False
    """mlx-whisper's own transcribe, in a process of its own."""
    known_speaker_names: tuple[str, ...] = ()
    known_speaker_references: tuple[str, ...] = ()

    @property
    def server_vad(self) -> ServerVad | None:
        """How to cut the recording into pieces; None: not at all."""
        return AUTO if self.chunking_strategy == "auto" else self.chunking_strategy

    @property
    def listens(self) -> bool:
        """Whether speech is looked for first. Without it the other fields about it have no effect."""
        return self.vad or self.vad_trim or self.chunking_strategy is not None

    @property
    def speech_threshold(self) -> float:
        """A `chunking_strategy` that names its own goes first."""
        named = self.chunking_strategy
        asked = named.threshold if isinstance(named, ServerVad) else self.vad_threshold
        return min(max(asked, SURE), 1 - SURE)

    @property
    def decoding(self) -> Decoding:
        """The part that the speech worker is told. The silence rule is ours: the oracle does as it does."""
        said = {name: getattr(self, name) for name in Decoding.__struct_fields__}
        follows = {
            "vocabulary": _handed_on(self.vocabulary),
            "words": "word" in self.timestamp_granularities,
            "logprobs": "logprobs" in self.include,
            "silence_rule": not self.faithful,
        }
        return Decoding(**said | follows)


R = TypeVar("R", bound=TranscriptRequest)

NOT_YET = ("known_speaker_names", "known_speaker_references")
"""Fields that so far take their default only."""

NOT_FAITHFUL = ("languages", "patience", "audio_ctx", "chunking_strategy", "include")
"""Fields that mlx-whisper's own transcribe knows nothing of; beam_size has a rule of its own."""


def parse(given: Given) -> tuple[TranscriptRequest, list[str]]:
    """The request for a file's transcript; see `parse_as`."""
    return parse_as(TranscriptRequest, given, OURS)


def parse_as(kind: type[R], given: Given, ours: Collection[str]) -> tuple[R, list[str]]:
    """The checked request, with languages as codes, and the names of unknown fields, those in `ours` among them.

    Raises InvalidValue for a wrong value, then UnsupportedValue for what is right but cannot be had.
    """
    said: dict[str, str] = {}
    for entry in given.entries:
        said.setdefault(ALIASES.get(entry.base, entry.base), entry.base)
    diarized = [entry for entry in given.entries if entry.base == "response_format" and entry.value == "diarized_json"]
    aside = {id(entry) for entry in (*diarized, *_lone_zero(given))}
    kept = Given(
        tuple(entry for entry in given.entries if id(entry) not in aside and entry.base not in ours), given.form
    )
    request, unknown = forms.decode(kind, kept, ALIASES)
    ignored = [entry.name for entry in given.entries if entry.base in ours or entry.name in unknown]
    ignored += [name for name in unknown if name not in ignored]
    request = _with_codes(request)
    _check(request, said)
    if diarized:
        raise _not_yet("response_format diarized_json", "response_format")
    _check_supported(request, said)
    prompt = request.prompt
    if prompt is not None and len(prompt) > PROMPT_TAIL:
        request = msgspec.structs.replace(request, prompt=prompt[-PROMPT_TAIL:])
    return request, ignored


def _handed_on(terms: tuple[str, ...]) -> tuple[str, ...]:
    """The first terms, TERMS_BYTES of them: a frame to a worker has a limit, and a worker better things to do."""
    sizes = accumulate(len(term.encode()) for term in terms)
    return tuple(term for term, size in zip(terms, sizes, strict=True) if size <= TERMS_BYTES)


def _lone_zero(given: Given) -> list[Entry]:
    """A lone temperature of 0, which means the ladder as in the official API; a list with one 0 means no fallback."""
    lone = [entry for entry in given.entries if entry.base == "temperature"]
    if len(lone) == 1 and lone[0].name == "temperature" and _is_zero(lone[0].value, given.form):
        return lone
    return []


def _is_zero(value: Any, form: bool) -> bool:
    if form:
        return forms.number(value.strip()) == 0
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def _with_codes(request: R) -> R:
    language = request.language
    if language is not None:
        language = None if languages.detects(language) else _code("language", language)
    several = tuple(dict.fromkeys(_code("languages", name) for name in request.languages))
    return msgspec.structs.replace(request, language=language, languages=several)


def _code(param: str, name: str) -> str:
    code = languages.code(name)
    if code is None:
        raise forms.wrong(param, name, "a language that Whisper knows, by code, English name or locale")
    return code


def _check(request: TranscriptRequest, said: dict[str, str]) -> None:
    """The rules between fields. Raises InvalidValue."""
    if request.language is not None and request.languages:
        raise InvalidValue("languages cannot be given together with language; send one of them", param="languages")
    for term in request.vocabulary:
        if len(term.encode()) > MAX_TERM_BYTES:
            raise forms.wrong(said["vocabulary"], term, f"a list of terms of at most {MAX_TERM_BYTES} bytes each")
    _check_details(request)
    if len(request.temperature) > MAX_TEMPERATURES:
        raise forms.wrong("temperature", request.temperature, f"a list of at most {MAX_TEMPERATURES} numbers")
    if request.temperature[0] > 0 and request.beam_size > 1:
        raise InvalidValue("beam_size must be 1 when temperature is over 0: sampling has no beams", param="beam_size")
    if request.faithful:
        for name in ("beam_size", *NOT_FAITHFUL):
            if not is_default(request, name):
                raise InvalidValue(f"{name} cannot be given together with faithful=true", param=name)


def _check_details(request: TranscriptRequest) -> None:
    """What is finer than segments needs an answer with room for it. Raises InvalidValue."""
    words = "word" in request.timestamp_granularities
    if words and request.response_format != "verbose_json" and not request.stream:
        raise InvalidValue(
            f"timestamp_granularities can hold word only with response_format verbose_json{request.DETAILS}",
            param="timestamp_granularities",
        )
    if request.hallucination_silence_threshold is not None and not words:
        raise InvalidValue(
            "hallucination_silence_threshold needs timestamp_granularities word: it goes by the words' times",
            param="hallucination_silence_threshold",
        )
    if request.include and request.response_format not in ("json", "verbose_json") and not request.stream:
        raise InvalidValue(
            f"include can hold logprobs only with response_format json or verbose_json{request.DETAILS}",
            param="include",
        )


def _check_supported(request: TranscriptRequest, said: dict[str, str]) -> None:
    for name in NOT_YET:
        if not is_default(request, name):
            raise _not_yet(said[name], said[name])


def is_default(request: TranscriptRequest, name: str) -> bool:
    return bool(getattr(request, name) == getattr(type(request)(), name))


def _not_yet(what: str, param: str) -> UnsupportedValue:
    return UnsupportedValue(f"{what} is not yet supported", param=param)


def check_model(request: TranscriptRequest, task: Task, model: Model) -> None:
    """Refuse what this model cannot do. Raises UnsupportedTask or InvalidValue."""
    if task == "translate" and not model.translates:
        raise UnsupportedTask(f"the model {model.id} was not trained to translate; use a multilingual one")
    asked = (
        [("language", request.language)] if request.language else [("languages", code) for code in request.languages]
    )
    for param, code in asked:
        if code is not None and code not in model.languages:
            some = ", ".join(model.languages[:8]) + (", …" if len(model.languages) > 8 else "")
            known = f"a language that the model {model.id} knows ({some})"
            raise InvalidValue(f"{param} must be {known}, not {languages.NAMES[code].title()}", param=param)
