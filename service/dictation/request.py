"""The typed request for a session: the fields of a file's transcript that make sense in one, and the session's own.

Knows what a client may ask; knows neither how it was sent nor what a session does with it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from protocol.errors import InvalidValue, UnsupportedValue
from protocol.jobs import FULL_CONTEXT, Task
from service import requests
from service.dictation.spec import Segmentation, SessionFormat, Spec
from service.forms import Given
from service.requests import TranscriptRequest

NO_FIELDS = (*requests.OURS, "stream")
"""Names that are unknown in a session: what is said in it can always be followed as a stream."""

NOT_IN_A_SESSION = {
    "chunking_strategy": "segmentation and vad_silence_ms say where it is cut",
    "vad_trim": "with segmentation vad only speech is transcribed",
}
"""Fields of a file's transcript that take their default only, and what to use instead."""


HIDDEN = (*NO_FIELDS, *NOT_IN_A_SESSION, *requests.NOT_YET, "faithful")
"""Members of the struct that no client can set."""


class SessionRequest(TranscriptRequest, frozen=True, kw_only=True):
    """A session's transcript. Its fields about a file's are the file's own, limits and rules too."""

    DETAILS: ClassVar[str] = ""

    response_format: SessionFormat = "json"
    audio_ctx: Annotated[int, Meta(ge=64, le=FULL_CONTEXT)] | Literal["auto"] = "auto"
    task: Task = "transcribe"
    segmentation: Segmentation = "vad"
    """`vad`: an utterance ends at a pause and is transcribed at once; `window`: each full 30 s."""
    vad_silence_ms: Annotated[int, Meta(ge=100, le=5_000)] = 500
    """The pause that ends an utterance."""
    partials: bool = False
    """Tell what is being said before it is final."""

    def spec(self, id: str, created: int, model: str) -> Spec:
        """`created` in Unix seconds; `model`: the id of the one that serves."""
        return Spec(
            id=id,
            created=created,
            model=model,
            task=self.task,
            segmentation=self.segmentation,
            vad_silence_ms=self.vad_silence_ms,
            vad_threshold=self.vad_threshold,
            vad_min_speech_ms=self.vad_min_speech_ms,
            partials=self.partials,
            response_format=self.response_format,
            decoding=self.decoding,
        )


def parse(given: Given) -> tuple[SessionRequest, list[str]]:
    """The checked request and the names of unknown fields. Raises InvalidValue and UnsupportedValue."""
    request, ignored = requests.parse_as(SessionRequest, given, NO_FIELDS)
    if request.faithful:
        raise UnsupportedValue(
            "faithful cannot be had in a session: mlx-whisper's own transcribe takes whole recordings only",
            param="faithful",
        )
    for name, instead in NOT_IN_A_SESSION.items():
        if not requests.is_default(request, name):
            raise InvalidValue(f"{name} cannot be given for a session: {instead}", param=name)
    if request.vad and request.segmentation == "window":
        raise InvalidValue(
            "vad cannot be given together with segmentation window, which transcribes everything", param="vad"
        )
    return request, ignored
