"""What a worker can answer. Each kind of job has its own terminal event; Failed ends any of them.

Knows nothing about HTTP. Times are seconds in the audio that the job named.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from protocol.errors import Kind
from protocol.jobs import Span
from protocol.past import Reached
from protocol.settings import AdapterSource
from protocol.tools import CallPart

ModelKind = Literal["whisper", "llm", "embedding"]

Bytes = bytes
"""The type by another name, for a struct that has a member of its own called so."""


class GenDefaults(msgspec.Struct, frozen=True):
    """How a language model samples when a request does not say."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""


class Model(msgspec.Struct, frozen=True):
    """What the service needs to know of a loaded model; the weights and tokenizer stay in the worker."""

    id: str
    kind: ModelKind
    languages: tuple[str, ...]
    """Codes it can be asked for; one alone means that it detects nothing."""
    translates: bool
    """Trained to translate into English."""
    parameters: int
    dtype: str
    context_window: int = 0
    """Tokens of prompt and answer together, or of one text to embed; 0 where that means nothing."""
    gen_defaults: GenDefaults | None = None
    """None for a model that is no language model."""
    embedding_width: int = 0
    """Numbers in a text's vector; 0: it gives none."""


class Backend(msgspec.Struct, frozen=True):
    """What the worker computes with."""

    name: Literal["cpu", "metal", "cuda", "none"]
    version: str = ""
    """Of MLX."""
    blas: str = ""
    """For people: "OpenBLAS 0.3.34 (scipy-openblas32)"; empty where MLX needs none."""
    slow: bool = False
    """True when MLX would run on the reference BLAS, fifty times slower."""
    compiler: str = ""
    """The C++ compiler MLX's CPU kernels are built with; empty: none found, or none needed."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Proof of life before Ready (always job 0). `done` of `total` bytes while something is fetched."""

    message: str
    done: int = 0
    total: int = 0


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine can serve (always job 0)."""

    capacity: int
    """How many jobs it takes at once; more wait in the service's queue."""
    backend: Backend = Backend(name="none")
    model: Model | None = None


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Proof of life; seconds of audio that are done, of all there is (0: not known)."""

    done: float
    total: float
    reached: Reached | None = None
    """Of a transcription: all segments up to here went before this."""


class Decoded(msgspec.Struct, frozen=True, tag="decoded"):
    """Ends Decode: the target holds `samples` samples at 16 kHz."""

    samples: int
    decoder: Literal["soundfile", "pyav"]
    container: str
    """As the decoder names it, for the log."""
    elapsed_ms: float


class Speech(msgspec.Struct, frozen=True, tag="speech"):
    """Ends DetectSpeech: where speech is, in order, samples from the start of the job's audio."""

    spans: tuple[Span, ...]
    elapsed_ms: float


class Followed(msgspec.Struct, frozen=True, tag="followed"):
    """Ends Follow. It stops after some 30 s of audio: with `more`, ask again at once."""

    samples: int
    """In the spool file now."""
    runs: int
    """How many of the job's runs are wholly converted."""
    base: int
    """Samples before the first run that is not."""
    probabilities: tuple[float, ...]
    """Of speech, for each further window of 512 samples; at the end silence fills the last one up."""
    levels: tuple[float, ...]
    """Root mean square of the same windows; full scale is 1."""
    memory: bytes
    """For the next Follow."""
    more: bool


class Doubt(msgspec.Struct, frozen=True, tag="doubt"):
    """Is there speech between these seconds of the job's audio? The job waits for Heard, others go on."""

    start: float
    end: float


class Word(msgspec.Struct, frozen=True):
    """`word` with the space before it: joined they are the segment's text."""

    word: str
    start: float
    end: float
    probability: float


class TokenLogprob(msgspec.Struct, frozen=True):
    """`token` has U+FFFD for bytes that are no whole character; `bytes` are exact."""

    token: str
    bytes: Bytes
    logprob: float


class Segment(msgspec.Struct, frozen=True, tag="segment"):
    """One finished segment. `seek` is in mel frames of 10 ms, as Whisper counts; `tokens` hold timestamps too."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    seek: int
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[Word, ...] | None = None
    """None when not asked for."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """Of the text's tokens, without timestamps; None when not asked for."""


class VocabularyReport(msgspec.Struct, frozen=True):
    """How many terms were given and fitted, the tokens they take and could have taken."""

    given: int
    fitted: int
    tokens: int
    budget: int


class Timings(msgspec.Struct, frozen=True):
    """Milliseconds inside the speech worker; 0 for a phase that did not run or that is part of `decode`."""

    mel: float = 0.0
    encode: float = 0.0
    decode: float = 0.0
    align: float = 0.0


class Transcribed(msgspec.Struct, frozen=True, tag="transcribed"):
    """Ends Transcribe. All segments went before it."""

    language: str | None
    """The code; None when nothing was spoken and none was asked for."""
    language_probability: float | None
    """Of the detection; None when the language was given."""
    timings: Timings
    vocabulary: VocabularyReport | None = None
    reached: Reached | None = None
    """Where a job on the same audio, grown meanwhile, goes on; None for `independent` spans."""


class GuessedWord(msgspec.Struct, frozen=True):
    """`text` with the space before it."""

    text: str
    tokens: tuple[int, ...]
    heard: float | None = None
    """Seconds of the audio up to the frame that its last token listened to most, punctuation left aside; None when
    not asked for."""
    probability: float = 1.0
    """The least of its tokens'."""


class Guessed(msgspec.Struct, frozen=True, tag="guessed"):
    """Ends Guess."""

    words: tuple[GuessedWord, ...]
    """Those of `said` included."""
    tokens: tuple[int, ...]
    """All that was said, timestamps too: a draft for the next job on this audio."""
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    language: str | None


class Candidate(msgspec.Struct, frozen=True):
    """A token that could have been said; `token` and `bytes` as in TokenLogprob."""

    token: str
    bytes: Bytes
    logprob: float


class Said(msgspec.Struct, frozen=True):
    """A generated token, under the model's own distribution (before penalties and temperature)."""

    token: str
    bytes: Bytes
    logprob: float
    likeliest: tuple[Candidate, ...] = ()


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The prompt is in: before the first Delta of a job."""

    prompt_tokens: int
    cached_tokens: int
    prompt: tuple[int, ...] = ()
    """The prompt's ids, where they are not those that the tokenizer makes of its text."""


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """More of one choice: whole characters, no stop string, no marker. The texts may be empty beside the others."""

    choice: int
    text: str = ""
    reasoning: str = ""
    said: tuple[Said, ...] = ()
    """The tokens of the text, where log-probabilities were asked for."""
    calls: tuple[CallPart, ...] = ()
    """What of calls comes after the text."""
    ids: tuple[int, ...] = ()
    """All tokens that were generated since the choice's last Delta: some may be held back still."""


class ChoiceEnded(msgspec.Struct, frozen=True, tag="choice_ended"):
    """A choice is complete."""

    choice: int
    reason: Literal["stop", "length", "tool_calls"]
    tokens: int
    """Generated, the end of text and what a stop string cut off included."""
    reasoning_tokens: int = 0
    stop: str | None = None
    """The stop string that ended it, if one did."""
    ids: tuple[int, ...] = ()
    """As in Delta."""


class Spent(msgspec.Struct, frozen=True):
    """Milliseconds inside the worker."""

    queue: float = 0.0
    template: float = 0.0
    cache: float = 0.0
    prefill: float = 0.0
    first_token: float = 0.0
    decode: float = 0.0


class Kept(msgspec.Struct, frozen=True):
    """What a prompt cache holds of conversations that have ended."""

    entries: int = 0
    bytes: int = 0


class Generated(msgspec.Struct, frozen=True, tag="generated"):
    """Ends Chat and Complete. All choices have ended before it."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    spent: Spent = Spent()
    grammar: Literal["enforced", "hint"] | None = None
    """What became of the job's shape; None: it had none."""
    forced_tokens: int = 0
    """Of the answer, those that the shape left no choice about: never sampled."""
    guessed_tokens: int = 0
    """Of the answer, those that were guessed right: several came of one pass through the network."""
    adapter: str | None = None
    """The id of the adapter that it was written with."""
    kept: Kept = Kept()
    """In the prompt cache now."""


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """Ends CountTokens."""

    tokens: int


class Adapter(msgspec.Struct, frozen=True):
    """A mounted adapter."""

    source: AdapterSource
    rank: int
    """The largest of all layers."""
    scale: float
    """What the product of its two matrices is multiplied with; of the first layer, where they differ."""
    size_bytes: int
    """Of its file."""
    mounted_layers: int
    """Linear layers that it changes."""


class Mounted(msgspec.Struct, frozen=True, tag="mounted"):
    """Ends MountAdapter, UnmountAdapter and ListAdapters: all that can be asked for now, in the order of mounting."""

    adapters: tuple[Adapter, ...]


class Vectors(msgspec.Struct, frozen=True, tag="vectors"):
    """Some of an Embed's vectors, each of length 1. `places`: whose they are, counted from 0; in any order."""

    places: tuple[int, ...]
    data: bytes
    """float32, little-endian: one vector after the other."""


class Read(msgspec.Struct, frozen=True):
    """Milliseconds inside the worker. `queue`: until its first piece was begun, without those of tokenizing."""

    queue: float = 0.0
    tokenize: float = 0.0
    embed: float = 0.0


class Embedded(msgspec.Struct, frozen=True, tag="embedded"):
    """Ends Embed. All Vectors went before it. `adapter`: the one that they were made with; None: the model alone."""

    tokens: int
    """Of all inputs, with what the model's tokenizer puts around a text."""
    spent: Read = Read()
    adapter: str | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Ends any job, or, as job 0, the worker: it cannot start, or met a bug and is about to end.

    `message` is for the client: no path, no traceback.
    """

    kind: Kind
    message: str
    param: str | None = None
    retry: bool | None = None


Event = (
    Progress
    | Decoded
    | Speech
    | Followed
    | Segment
    | Doubt
    | Transcribed
    | Guessed
    | Started
    | Delta
    | ChoiceEnded
    | Generated
    | Counted
    | Mounted
    | Vectors
    | Embedded
    | Failed
)
FromWorker = Loading | Ready | Event
TERMINAL = (Decoded, Speech, Followed, Transcribed, Guessed, Generated, Counted, Mounted, Embedded, Failed)
"""After one of these a job's id is free."""
