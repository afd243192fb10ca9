"""What a worker is told once, as its first frame: which engine it is and the engine's defaults.

Knows no path of its own and reads no environment: the service fills these in from its configuration. Of the machine it
looks at the size of its memory alone.
"""

from __future__ import annotations

import os

import msgspec

SAMPLE_RATE = 16_000
"""Samples per second of every `Pcm`: what Whisper's mel filters are made for (openai/whisper audio.py)."""


LEAST_CACHE_BYTES = 128 << 20
"""A conversation of 2500 tokens with a model of 135 million parameters: 46 KiB of keys and values each."""
CACHE_MEMORY = 192
"""One part in so many of the machine's memory is for what finished conversations leave behind."""


def cache_bytes() -> int:
    """The prompt cache's default: as much as small machines can spare, and more where there is more."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(LEAST_CACHE_BYTES, memory // CACHE_MEMORY)


class MediaSettings(msgspec.Struct, frozen=True, tag="media"):
    """Limits of one media process. It reads clients' files, so nothing in it is trusted."""

    max_audio_seconds: float = 4 * 3600.0
    max_decode_seconds: float = 300.0
    """Wall-clock seconds that one file may take."""
    memory_bytes: int = 2 << 30
    """Address space that the process may add to what it has after its imports (RLIMIT_AS; not enforced by macOS)."""
    capacity: int = 2
    """Jobs at once: a short one need not wait for a long one, and the memory limit is shared by no more."""


class OracleSettings(msgspec.Struct, frozen=True, tag="oracle"):
    """mlx-whisper's own `transcribe`, one job at a time."""

    model: str
    """A folder, a Hugging Face id or a starter's name."""
    data_dir: str
    """Where converted starters and the prepared BLAS are kept."""
    threads: int = 0
    """BLAS threads; 0: one for each core that this process may use."""
    offline: bool = False
    """Never ask the Hugging Face hub."""


class WhisperSettings(msgspec.Struct, frozen=True, tag="whisper"):
    """Our own Whisper engine, many windows at once."""

    model: str
    data_dir: str
    threads: int = 0
    """Compute streams on a CPU; 0: one for each core that this process may use."""
    offline: bool = False


class LlmSettings(msgspec.Struct, frozen=True, tag="llm"):
    """The language-model engine: many conversations at once."""

    model: str
    """A folder, a Hugging Face id or a starter's name."""
    data_dir: str
    """Where converted starters and the prepared BLAS are kept."""
    threads: int = 0
    """Compute streams on a CPU; 0: one for each core that this process may use, two at most."""
    offline: bool = False
    cache_bytes: int = msgspec.field(default_factory=cache_bytes)
    """Of keys and values that finished conversations leave behind."""
    max_rows: int = 16
    """Choices decoded together; more wait."""
    trace: bool = False
    """Trace every request."""
    trace_text: bool = False
    """A trace may show tokens' text."""


Settings = MediaSettings | WhisperSettings | OracleSettings | LlmSettings
