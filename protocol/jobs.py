"""What the service can ask of a worker, and the parts that questions are made of.

Knows nothing about HTTP, processes or models. Ids belong to the frame, never to a message.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.past import Context, Reached
from protocol.resume import Resume
from protocol.settings import SAMPLE_RATE, AdapterSource
from protocol.tools import Tools

Task = Literal["transcribe", "translate"]

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Whisper's fallback ladder (openai/whisper transcribe.py)."""


class Pcm(msgspec.Struct, frozen=True):
    """A span of a spool file: 16 kHz mono signed 16-bit little-endian samples.

    `start` and `stop` count samples, not bytes; the span is half open.
    """

    path: str
    start: int
    stop: int

    @property
    def seconds(self) -> float:
        return (self.stop - self.start) / SAMPLE_RATE


FULL_CONTEXT = 1500
"""Encoder frames of 20 ms in a whole window of 30 s."""


class Span(msgspec.Struct, frozen=True):
    """Samples [start, stop), counted from the start of the job's `Pcm`."""

    start: int
    stop: int


class Decoding(msgspec.Struct, frozen=True, kw_only=True):
    """How Whisper decodes one recording. Names and defaults are Whisper's; None switches a threshold off."""

    language: str | None = None
    """A Whisper language code; None: detect."""
    languages: tuple[str, ...] = ()
    """Codes among which detection chooses; empty: all that the model knows."""
    prompt: str | None = None
    before: str = ""
    """What was said just before this audio. It follows the prompt and takes no room from the vocabulary."""
    vocabulary: tuple[str, ...] = ()
    """Hint terms; they stand in every window's prompt."""
    temperature: tuple[Annotated[float, Meta(ge=0, le=1)], ...] = TEMPERATURES
    """Tried in turn until a window passes the failure tests."""
    best_of: Annotated[int, Meta(ge=1, le=16)] = 5
    beam_size: Annotated[int, Meta(ge=1, le=16)] = 1
    """At temperature 0 only."""
    patience: Annotated[float, Meta(gt=0, le=5)] = 1.0
    length_penalty: Annotated[float, Meta(ge=0, le=1)] | None = None
    condition_on_previous_text: bool = True
    no_speech_threshold: Annotated[float, Meta(ge=0, le=1)] | None = 0.6
    logprob_threshold: Annotated[float, Meta(le=0)] | None = -1.0
    compression_ratio_threshold: Annotated[float, Meta(gt=0)] | None = 2.4
    without_timestamps: bool = False
    words: bool = False
    hallucination_silence_threshold: Annotated[float, Meta(ge=0)] | None = None
    """Seconds; acts with `words` only."""
    audio_ctx: Annotated[int, Meta(ge=64, le=FULL_CONTEXT)] | Literal["auto"] = FULL_CONTEXT
    """Encoder frames that a window gets; auto: as many as its audio needs and a margin."""
    logprobs: bool = False
    silence_rule: bool = False
    """Ask whether there is speech in a window whose text is doubtful, and drop it where there is none."""
    seed: int = 0
    """Of the sampling temperatures: the same job and seed give the same text."""


class OfRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What every job has."""

    request: str = ""
    """The id of the request that it is done for, for log lines; empty: none."""


class Decode(OfRequest, frozen=True, tag="decode"):
    """Turn any media file into 16 kHz mono s16le. Answered by Progress… Decoded."""

    source: str
    """The client's file as it came. Its name means nothing."""
    target: str
    """The spool file to write."""


class DetectSpeech(OfRequest, frozen=True, tag="detect_speech"):
    """Where is speech? Answered by Progress…, Speech."""

    audio: Pcm
    threshold: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """Probability over which 32 ms count as speech."""
    min_speech_ms: Annotated[int, Meta(ge=0, le=10_000)] = 250
    """A shorter burst is no speech."""


class Raw(msgspec.Struct, frozen=True):
    """Samples without a container: interleaved frames of `channels`."""

    encoding: Literal["s16le", "s16be", "f32le"] = "f32le"
    rate: Annotated[int, Meta(ge=8_000, le=48_000)] = SAMPLE_RATE
    channels: Annotated[int, Meta(ge=1, le=2)] = 1

    @property
    def frame_bytes(self) -> int:
        return self.channels * (4 if self.encoding == "f32le" else 2)

    def samples(self, frames: int) -> int:
        """How many samples at 16 kHz come of `frames` frames.

        This is libsoxr's own arithmetic (rate_flush in rate.h), in doubles as there: in integers some halves would
        be rounded to the other side.
        """
        return int(frames / (self.rate / SAMPLE_RATE) + 0.5)


class Run(msgspec.Struct, frozen=True):
    """Bytes [start, stop) of a file: raw audio of one format as it was recorded, or one encoded file (`raw` None)."""

    path: str
    start: int
    stop: int
    raw: Raw | None
    header: int = 0
    """Bytes before each chunk in the file that are no audio; the first four of them are the chunk's length in bytes,
    without the header, little-endian. 0: there are no chunks, every byte is audio."""


class Follow(OfRequest, frozen=True, tag="follow"):
    """Convert what was newly recorded and listen for speech in it. Answered by Progress…, Followed.

    The worker remembers where it was, but needs not: after a restart it converts the first run again, up to
    `samples`, and the same samples come out.
    """

    runs: tuple[Run, ...]
    """Those not wholly converted, in order: the first perhaps in part. All but the last are complete; an encoded file
    always is."""
    pcm: str
    """The spool file that grows. What it holds beyond `samples` is written anew."""
    base: int
    """Samples in `pcm` before the first run."""
    samples: int
    """Samples in `pcm` that are there already."""
    ended: bool = False
    """The last run is complete too: what resamplers hold back is wanted."""
    heard: int = 0
    """Windows of 512 samples, from the start of `pcm`, that were listened to."""
    memory: bytes = b""
    """What the detector remembered after them (Followed.memory); empty at the start."""


class Transcribe(OfRequest, frozen=True, tag="transcribe"):
    """Turn speech into text. Answered by Progress, Segment and Doubt in any number, then Transcribed."""

    audio: Pcm
    task: Task = "transcribe"
    decoding: Decoding = Decoding()
    urgent: bool = False
    """Someone is waiting while speaking: goes before all that are not."""
    spans: tuple[Span, ...] | None = None
    """All that is to be heard; times in the answers are the whole audio's all the same. None: everything."""
    independent: bool = False
    """Decode each span for itself, many at once, not conditioned on the one before."""
    speech: tuple[Span, ...] | None = None
    """Where speech is, if that is known already: then the silence rule asks nobody."""
    reached: Reached | None = None
    """Go on from here instead of the start of `audio`."""
    whole: bool = True
    """False: more audio will follow, so stop before the first window that is not full."""
    draft: tuple[int, ...] = ()
    """Tokens that the first window will probably say (Guessed.tokens). They make it faster and change nothing; they
    are of use at temperature 0 without beams."""
    context: Context | None = None
    """Not with `spans`; with `reached` it is heard already."""


class Guess(OfRequest, frozen=True, tag="guess"):
    """What is being said in audio of at most 30 s that goes on? Answered by Guessed.

    Goes after urgent work and before files. One window, one attempt at the first temperature, no beams, no fallback.
    """

    audio: Pcm
    task: Task = "transcribe"
    decoding: Decoding = Decoding()
    said: tuple[int, ...] = ()
    """Tokens of text that the answer begins with, because they were shown as stable."""
    draft: tuple[int, ...] = ()
    """As in Transcribe: the whole of the last answer, `said` and timestamps included."""
    listening: bool = False
    """Tell of each word how far into the audio it listened. Takes a further pass."""
    context: Context | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a token is chosen. None: as the model's own generation_config says, else the default named here."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """1; 0 is greedy."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    """1."""
    top_k: Annotated[int, Meta(ge=0)] | None = None
    """0: all."""
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """0."""
    xtc_probability: Annotated[float, Meta(ge=0, le=1)] = 0.0
    xtc_threshold: Annotated[float, Meta(ge=0, le=0.5)] = 0.1
    repetition_penalty: Annotated[float, Meta(gt=0)] = 1.0
    """Over the prompt's and the answer's last `repetition_context_size` tokens, as mlx-lm has it."""
    repetition_context_size: Annotated[int, Meta(ge=1)] = 20
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    """This and the next as OpenAI defines them: over all generated tokens and no others."""
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    logit_bias: tuple[tuple[int, Annotated[float, Meta(ge=-100, le=100)]], ...] = ()
    """(token, what is added to its logit)."""
    seed: int | None = None
    """The same seed and request give the same answer, alone or among others; None: a new one each time."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer must look like, token by token; with a `trigger` only the parts of it that follow on that."""

    kind: Literal["json", "regex", "choice", "lark"]
    text: str
    """json: a JSON schema. regex: an expression for all of the answer. choice: a JSON list of strings, one of which is
    the answer. lark: a grammar in llguidance's dialect, which can embed schemas, or in llama.cpp's GBNF."""
    param: str | None = None
    """The request's field that it came from, for refusals."""
    trigger: str | None = None
    """Until the answer has said this, markers included, it is free; then what follows has the shape."""
    again: bool = True
    """After such a part the answer is free again, up to the next trigger; False: it ends with the first."""
    hint: bool = False
    """What cannot be enforced is put into the prompt, instead of refusing the job."""


BASE_MODEL = "none"
"""What is asked for instead of an adapter to get the model as it is."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the model beside the prompt."""

    sampling: Sampling = Sampling()
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Of one choice; cut to what the context leaves. None: all of that."""
    stop: tuple[str, ...] = ()
    """Matched on text, never part of the answer."""
    n: Annotated[int, Meta(ge=1, le=8)] = 1
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Log-probabilities of each token and of so many likelier ones; None: none."""
    client: str = ""
    """Whose it is: the engine is fair among clients."""
    pin: str | None = None
    """A conversation whose prompt cache is kept as long as possible."""
    trace: bool = False
    """Log phases and how the first tokens were routed."""
    shape: Shape | None = None
    """None: any text."""
    adapter: str = ""
    """By its id; empty: the default one, if there is one; BASE_MODEL: none."""
    resume: Resume | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message, its content already text. What the template makes of it is the template's affair."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    reasoning_content: str | None = None


class Chat(OfRequest, frozen=True, tag="chat"):
    """Answer a conversation. Answered by Progress, Delta and ChoiceEnded in any number, then Generated."""

    messages: tuple[ChatMessage, ...]
    generation: Generation = Generation()
    template_kwargs: dict[str, Any] = {}
    """Handed to the model's chat template."""
    tools: Tools = Tools()


class Complete(OfRequest, frozen=True, tag="complete"):
    """Go on with a text. Answered as Chat is."""

    prompt: str | tuple[int, ...]
    generation: Generation = Generation()
    echo: bool = False
    """The prompt is the beginning of the answer."""


class CountTokens(OfRequest, frozen=True, tag="count_tokens"):
    """How long would the prompt of this be? Answered by Counted; nothing is generated."""

    chat: Chat


class MountAdapter(OfRequest, frozen=True, tag="mount_adapter"):
    """Let requests ask for one more adapter. Answered by Mounted.

    Raises InvalidValue, with `path` or `id` as its param, for what does not fit; nothing has changed then.
    """

    source: AdapterSource


class UnmountAdapter(OfRequest, frozen=True, tag="unmount_adapter"):
    """Let no further request ask for it; those that run go on with it. Answered by Mounted."""

    id: str


class ListAdapters(OfRequest, frozen=True, tag="list_adapters"):
    """Answered by Mounted."""


class Embed(OfRequest, frozen=True, tag="embed"):
    """Vectors of texts. Answered by Progress and Vectors in any number, then Embedded."""

    inputs: tuple[str | tuple[int, ...], ...]
    """Texts, or tokens that are read as they are."""
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    """The first so many numbers of each vector, which is then made of length 1 again; None: all."""
    client: str = ""
    """As in Generation."""
    adapter: str = ""
    """As in Generation. Models for embeddings have none."""


class Heard(msgspec.Struct, frozen=True, tag="heard"):
    """Answers the oldest Doubt of the job whose id the frame carries. Unknown ids are fine."""

    speech: bool


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Forget the job whose id the frame carries. Idempotent; unknown ids are fine.

    A job that it stops ends with Failed(request_cancelled), so that its id is free and a hang still shows; where an
    engine blocks, the process ends instead (wire.CANCELLED_EXIT).
    """


Job = (
    Decode
    | DetectSpeech
    | Follow
    | Transcribe
    | Guess
    | Chat
    | Complete
    | CountTokens
    | MountAdapter
    | UnmountAdapter
    | ListAdapters
    | Embed
)
ToWorker = Job | Heard | Cancel
