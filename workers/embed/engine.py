"""The embedding engine: texts over a model of its own. How they share it is workers/llm/embeddings.py's affair."""

from __future__ import annotations

from collections.abc import Callable

from protocol.errors import WrongModelKind
from protocol.events import Loading, Ready
from protocol.jobs import Embed, Heard, Job
from protocol.settings import EmbedSettings
from workers.backend import log_loaded, start
from workers.llm.embeddings import Embeddings
from workers.llm.queue import Shares
from workers.llm.texts import Embedder, Embedding
from workers.loop import Emit

CAPACITY = 64
"""Jobs at once. One that waits costs its tokens."""


class EmbedEngine:
    """The loop's Engine over an Embedder. Only the main thread calls it."""

    blocking = False

    def __init__(self, embedder: Embedder, ready: Ready) -> None:
        self._ready = ready
        self._embeddings = Embeddings(embedder, Shares(), ready.model.id if ready.model else "")

    @property
    def ready(self) -> Ready:
        return self._ready

    @property
    def busy(self) -> bool:
        return self._embeddings.busy

    def admit(self, job: Job, emit: Emit) -> Embedding:
        if not isinstance(job, Embed):
            raise WrongModelKind("this worker makes vectors of texts and does nothing else")
        return self._embeddings.admit(job, emit)

    def cancel(self, handle: Embedding) -> None:
        self._embeddings.cancel(handle)

    def answer(self, handle: Embedding, heard: Heard) -> None:
        """Nothing is ever asked."""

    def step(self) -> None:
        self._embeddings.step(None, busy=False)


def build(settings: EmbedSettings, report: Callable[[Loading], None]) -> EmbedEngine:
    """Load the BLAS, MLX and the model, in this order and this thread. Raises ModelNotConfigured."""
    backend = start(settings.data_dir, report, few=True)
    from workers.embed.load import load

    loaded = load(
        settings.model,
        data_dir=settings.data_dir,
        offline=settings.offline,
        report=report,
        threads=settings.threads,
    )
    log_loaded(loaded.model, backend)
    return EmbedEngine(loaded.embedder, Ready(capacity=CAPACITY, backend=backend, model=loaded.model))
