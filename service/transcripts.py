"""Transcript to body: json, text, srt, vtt and verbose_json (FORMATS names them), and a stream's events.

Knows how a transcript is written; knows no request and no worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from protocol.events import Progress, Segment, Timings, TokenLogprob, VocabularyReport, Word
from protocol.jobs import Span, Task
from protocol.settings import SAMPLE_RATE
from service import languages

if TYPE_CHECKING:
    from service import written

UNHEARD = dict.fromkeys(map(ord, "\ufffd\ufeff"))
"""Not words: half of a character that was split over tokens, and the byte order mark."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from the end of the upload to the answer. `queue` is what no worker worked in."""

    queue: float
    decode_audio: float
    vad: float = 0.0
    mel: float = 0.0
    encode: float = 0.0
    decode: float = 0.0
    align: float = 0.0
    total: float
    rtf: float | None
    """Time spent for one second of audio."""


class Vad(msgspec.Struct, frozen=True):
    """What was taken for speech and heard, margins included; seconds of the recording."""

    speech_seconds: float
    spans: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Vad:
        heard = tuple((round(span.start / SAMPLE_RATE, 3), round(span.stop / SAMPLE_RATE, 3)) for span in spans)
        return cls(round(sum((end - start for start, end in heard), 0.0), 3), heard)


class Meta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of the key `starling`. What was not asked for is left out."""

    model: str
    language: str | None
    language_probability: float | None
    duration: float
    timings: Spent
    vocabulary: VocabularyReport | None = None
    vad: Vad | None = None


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """What was heard, in good order (see `Timeline`)."""

    task: Task
    segments: tuple[Segment, ...]
    meta: Meta
    words: bool = False
    """Whether words were asked for, and so belong into a body that has room for them; `logprobs` likewise."""
    logprobs: bool = False

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def language(self) -> str:
        """The English name of the text's language, in lower case; a translation is English by definition."""
        if self.task == "translate":
            return "english"
        return languages.NAMES.get(self.meta.language or "", "unknown")


def spent(total_s: float, decode_audio_ms: float, vad_ms: float, worker: Timings, duration: float) -> Spent:
    """`total_s`: seconds from the end of the upload; the rest is what the workers say that they worked."""
    total = total_s * 1000
    worked = decode_audio_ms + vad_ms + worker.mel + worker.encode + worker.decode + worker.align
    return Spent(
        queue=round(max(0.0, total - worked), 1),
        decode_audio=round(decode_audio_ms, 1),
        vad=round(vad_ms, 1),
        mel=round(worker.mel, 1),
        encode=round(worker.encode, 1),
        decode=round(worker.decode, 1),
        align=round(worker.align, 1),
        total=round(total, 1),
        rtf=round(total_s / duration, 4) if duration > 0 else None,
    )


class Timeline:
    """Puts one recording's segments, as they come, between 0 and its end: none starts before the last one's end.

    Whisper's timestamps are guesses: they may go backwards or past the end of the audio.
    """

    def __init__(self, duration: float, heard: float = 0.0) -> None:
        """`heard`: where the last segment ended, if there were some before."""
        self._duration = duration
        self._heard = heard

    def settle(self, segment: Segment) -> Segment:
        """The segment with such times (seconds, to the millisecond), its words within, and no half characters."""
        start, end = _between(segment.start, segment.end, self._heard, self._duration)
        self._heard = end
        return msgspec.structs.replace(
            segment,
            start=start,
            end=end,
            text=segment.text.translate(UNHEARD),
            words=None if segment.words is None else tuple(_settled(segment.words, start, end)),
        )


def _settled(words: Iterable[Word], start: float, end: float) -> Iterable[Word]:
    """The words one after the other between `start` and `end`."""
    heard = start
    for word in words:
        if text := word.word.translate(UNHEARD):
            begins, heard = _between(word.start, word.end, heard, end)
            yield Word(text, begins, heard, word.probability)


def _between(start: float, end: float, low: float, high: float) -> tuple[float, float]:
    """low ≤ start ≤ end ≤ high."""
    start = min(max(round(start, 3), low), high)
    return start, min(max(round(end, 3), start), high)


def _usage(transcript: Transcript) -> written.Duration:
    # Whole seconds, rounded up, as the official API bills them.
    return {"type": "duration", "seconds": math.ceil(transcript.meta.duration)}


def _plain(transcript: Transcript) -> written.Json:
    """The members of json; token log-probabilities where they were asked for."""
    members: written.Json = {"text": transcript.text, "usage": _usage(transcript), "starling": transcript.meta}
    if transcript.logprobs:
        members["logprobs"] = _logprobs(token for segment in transcript.segments for token in segment.logprobs or ())
    return members


def _verbose(transcript: Transcript) -> written.VerboseJson:
    """The members of verbose_json."""
    plain = _plain(transcript)
    members: written.VerboseJson = {
        "task": transcript.task,
        "language": transcript.language,
        "duration": transcript.meta.duration,
        "text": plain["text"],
        "segments": [verbose_segment(number, segment) for number, segment in enumerate(transcript.segments)],
        "usage": plain["usage"],
        "starling": plain["starling"],
    }
    if "logprobs" in plain:
        members["logprobs"] = plain["logprobs"]
    if transcript.words:
        members["words"] = [word for segment in transcript.segments for word in segment.words or ()]
    return members


def verbose_segment(number: int, segment: Segment) -> written.VerboseSegment:
    """A segment as verbose_json has it."""
    members: written.VerboseSegment = {
        "id": number,
        "seek": segment.seek,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }
    if segment.words is not None:
        members["words"] = segment.words
    return members


def _logprobs(tokens: Iterable[TokenLogprob]) -> list[written.Logprob]:
    return [{"token": each.token, "logprob": each.logprob, "bytes": list(each.bytes)} for each in tokens]


def json(transcript: Transcript) -> bytes:
    return msgspec.json.encode(_plain(transcript))


def verbose_json(transcript: Transcript) -> bytes:
    return msgspec.json.encode(_verbose(transcript))


def text(transcript: Transcript) -> bytes:
    return (transcript.text + "\n").encode()


def srt(transcript: Transcript) -> bytes:
    cues = (
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{words}\n"
        for number, (start, end, words) in enumerate(_cues(transcript), 1)
    )
    return "\n".join(cues).encode()


def vtt(transcript: Transcript) -> bytes:
    cues = (
        f"\n{_clock(start, '.')} --> {_clock(end, '.')}\n{_escaped(words)}\n" for start, end, words in _cues(transcript)
    )
    return ("WEBVTT\n" + "".join(cues)).encode()


def _cues(transcript: Transcript) -> Iterable[tuple[int, int, str]]:
    """Start and end in milliseconds and the words: no cue without words, without length, or with a blank line."""
    for segment in transcript.segments:
        lines = (line.strip() for line in segment.text.splitlines())
        words = "\n".join(line for line in lines if line)
        start, end = round(segment.start * 1000), round(segment.end * 1000)
        if words and end > start:
            yield start, end, words


def _clock(milliseconds: int, mark: str) -> str:
    """`HH:MM:SS` and the milliseconds after `mark`; the hours take more digits when they need them."""
    seconds, fraction = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{mark}{fraction:03d}"


def _escaped(words: str) -> str:
    """WebVTT cue text (W3C WebVTT, 4.2.2). An arrow is gone once its `>` is."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Format(msgspec.Struct, frozen=True):
    """How a transcript is written and what the body is called."""

    write: Callable[[Transcript], bytes]
    media_type: str


FORMATS: dict[str, Format] = {
    "json": Format(json, "application/json"),
    "text": Format(text, "text/plain; charset=utf-8"),
    "srt": Format(srt, "application/x-subrip; charset=utf-8"),
    "verbose_json": Format(verbose_json, "application/json"),
    "vtt": Format(vtt, "text/vtt; charset=utf-8"),
}


def progress(event: Progress) -> written.Progress:
    """A stream's event about seconds of the recording."""
    return {"type": "transcript.progress", "done": round(event.done, 3), "total": round(event.total, 3)}


class Deltas:
    """A stream's events about segments, which come in order. Their texts joined are the transcript's `text`."""

    def __init__(self) -> None:
        self._number = 0
        self._begun = False
        self._held = ""
        """White space that belongs before the next text, if there is one."""

    def add(self, segment: Segment) -> written.Delta | None:
        """None for a segment without words."""
        number, self._number = self._number, self._number + 1
        text = self._held + segment.text
        said = text.rstrip()
        self._held = text[len(said) :] if self._begun or said else ""
        if not said:
            return None
        delta = said if self._begun else said.lstrip()
        self._begun = True
        times: written.Times = {"id": number, "start": segment.start, "end": segment.end}
        if segment.words is not None:
            times["words"] = segment.words
        event: written.Delta = {"type": "transcript.text.delta", "delta": delta, "segment": times}
        if segment.logprobs is not None:
            event["logprobs"] = _logprobs(segment.logprobs)
        return event


def done(transcript: Transcript, response_format: str) -> written.Done | written.VerboseDone:
    """A stream's last event: json's members, or verbose_json's, or json's and the `body` in another format."""
    if response_format == "verbose_json":
        return {"type": "transcript.text.done", **_verbose(transcript)}
    event: written.Done = {"type": "transcript.text.done", **_plain(transcript)}  # type: ignore[typeddict-item]
    if response_format != "json":
        event["body"] = FORMATS[response_format].write(transcript).decode()
    return event
