"""Transcript to body: json, text, srt, vtt and verbose_json; FORMATS names them.

Pure functions over finished transcripts; knows no request and no worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from protocol.events import Segment, Timings
from protocol.jobs import Task
from service import languages

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


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the key `starling`."""

    model: str
    language: str | None
    language_probability: float | None
    duration: float
    timings: Spent


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """What was heard, in good order (see `ordered`)."""

    task: Task
    segments: tuple[Segment, ...]
    meta: Meta

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def language(self) -> str:
        """The English name of the text's language, in lower case; a translation is English by definition."""
        if self.task == "translate":
            return "english"
        return languages.NAMES.get(self.meta.language or "", "unknown")


def spent(total_s: float, decode_audio_ms: float, worker: Timings, duration: float) -> Spent:
    """`total_s`: seconds from the end of the upload; the rest is what the workers say that they worked."""
    total = total_s * 1000
    worked = decode_audio_ms + worker.mel + worker.encode + worker.decode + worker.align
    return Spent(
        queue=round(max(0.0, total - worked), 1),
        decode_audio=round(decode_audio_ms, 1),
        mel=round(worker.mel, 1),
        encode=round(worker.encode, 1),
        decode=round(worker.decode, 1),
        align=round(worker.align, 1),
        total=round(total, 1),
        rtf=round(total_s / duration, 4) if duration > 0 else None,
    )


def ordered(segments: Iterable[Segment], duration: float) -> tuple[Segment, ...]:
    """The segments with 0 ≤ start ≤ end ≤ duration, none before the last one's end, and without half characters.

    Whisper's timestamps are guesses: they may go backwards or past the end of the audio. Seconds, to the millisecond.
    """
    good: list[Segment] = []
    heard = 0.0
    for segment in segments:
        start = min(max(round(segment.start, 3), heard), duration)
        end = min(max(round(segment.end, 3), start), duration)
        text = segment.text.translate(UNHEARD)
        good.append(msgspec.structs.replace(segment, start=start, end=end, text=text))
        heard = end
    return tuple(good)


def _usage(transcript: Transcript) -> dict[str, object]:
    # Whole seconds, rounded up, as the official API bills them.
    return {"type": "duration", "seconds": math.ceil(transcript.meta.duration)}


def json(transcript: Transcript) -> bytes:
    return msgspec.json.encode({"text": transcript.text, "usage": _usage(transcript), "starling": transcript.meta})


def verbose_json(transcript: Transcript) -> bytes:
    return msgspec.json.encode(
        {
            "task": transcript.task,
            "language": transcript.language,
            "duration": transcript.meta.duration,
            "text": transcript.text,
            "segments": [_verbose(number, segment) for number, segment in enumerate(transcript.segments)],
            "usage": _usage(transcript),
            "starling": transcript.meta,
        }
    )


def _verbose(number: int, segment: Segment) -> dict[str, Any]:
    return {
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
