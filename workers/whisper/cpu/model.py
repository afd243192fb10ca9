"""The Whisper model tuned for the CPU: float32 on a thread for each core, in code that is compiled for this processor.

Ties the tuned encoder and decoder together. Everything runs in the thread that made it.
"""

import logging
from pathlib import Path
from typing import Any

from workers import blas, native
from workers.heap import keep_memory
from workers.streams import MAX_STREAMS, cores
from workers.whisper.cpu import library
from workers.whisper.cpu.decoder import NativeDecoder
from workers.whisper.cpu.encoder import NativeEncoder
from workers.whisper.model import TwoHalves
from workers.whisper.plain import plain_model

_log = logging.getLogger(__name__)


def cpu_model(module: Any, threads: int | None, folder: Path) -> TwoHalves[Any, Any]:
    """Takes the arrays out of the module, which is of no use afterwards: two copies would be half the worker's memory.

    threads: one for each core unless it says otherwise. folder: where what is compiled is kept. Where it cannot be, or
    the model has sizes that no real one has, the plain formulation answers.
    """
    keep_memory()
    try:
        compiled = library.load(folder, blas.compiler())
    except native.NotBuilt as error:
        _log.warning("Whisper runs without compiled code, several times slower: %s", error)
        return plain_model(module)
    dims, heads = module.dims, module.alignment_heads.tolist()
    if not library.fits(dims):
        return plain_model(module)
    count = min(threads or cores(), MAX_STREAMS)
    encoder = NativeEncoder(module.encoder, dims.n_audio_head, count, compiled)
    return TwoHalves(dims, heads, encoder, NativeDecoder(module, count, compiled))
