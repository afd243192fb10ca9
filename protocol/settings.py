"""What a worker is told once, as its first frame: which engine it is and the engine's defaults.

Knows no path of its own and reads no environment: the service fills these in from its configuration.
"""

from __future__ import annotations

import msgspec

SAMPLE_RATE = 16_000
"""Samples per second of every `Pcm`: what Whisper's mel filters are made for (openai/whisper audio.py)."""


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


class AdapterSource(msgspec.Struct, frozen=True):
    """A LoRA adapter as it was named, and where it lies."""

    id: str
    """What requests call it."""
    folder: str
    """Absolute; for the worker alone."""
    path: str
    """As clients see it: below the folder of all adapters."""


class LlmSettings(msgspec.Struct, frozen=True, tag="llm"):
    """The language-model engine: many conversations at once."""

    model: str
    """A folder, a Hugging Face id or a starter's name."""
    data_dir: str
    """Where converted starters and the prepared BLAS are kept."""
    threads: int = 0
    """Compute streams on a CPU; 0: one for each core that this process may use, two at most."""
    offline: bool = False
    cache_bytes: int = 112 << 20
    """Of keys and values that finished conversations leave behind."""
    max_rows: int = 16
    """Choices decoded together; more wait."""
    trace: bool = False
    """Trace every request."""
    trace_text: bool = False
    """A trace may show tokens' text."""
    adapters: tuple[AdapterSource, ...] = ()
    """Mounted before it is ready."""
    default_adapter: str = ""
    """Of requests that name none, while an adapter of this id is mounted. It must be mounted, or nothing starts, where
    it is among `adapters`."""


class EmbedSettings(msgspec.Struct, frozen=True, tag="embedding"):
    """A model whose one purpose is vectors of texts: an encoder, or a language model made for it."""

    model: str
    """A folder, a Hugging Face id or a starter's name."""
    data_dir: str
    threads: int = 0
    """As in LlmSettings."""
    offline: bool = False


Settings = MediaSettings | WhisperSettings | OracleSettings | LlmSettings | EmbedSettings
