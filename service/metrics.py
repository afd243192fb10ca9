"""What is counted, for Prometheus: requests, waits, tokens. One House has one; nothing here is a module's own.

Labels are bounded: routes as the URL map writes them, pools as they are configured, never a path or a client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from protocol.events import Delta, Event, Generated, Kept, Segment, Transcribed
from protocol.jobs import Chat, Complete, Job, Transcribe
from service.worker import ProcessStats

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

WAITS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds."""
FACTORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)
"""Seconds of work for a second of audio."""

METHODS = frozenset(("GET", "HEAD", "POST", "DELETE", "OPTIONS", "WebSocket"))
NOWHERE = "none"
"""The route of a request that found none."""


@dataclass(frozen=True)
class Now:
    """What is not counted but looked at when someone asks. Bytes are those on disk."""

    processes: list[ProcessStats]
    sessions: dict[str, int]
    session_bytes: int
    spool_bytes: int
    spooled_bytes: int
    """Ever."""
    kept: dict[str, Kept]
    """Of each language model's pool: what its prompt cache holds."""


class Metrics:
    """Satisfies service.watch.Watch; the middleware tells it of requests."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.kept: dict[str, Kept] = {}
        """As Now.kept."""
        self._requests = self._counter("requests", "Requests that were answered.", "method", "route", "status")
        self._seconds = self._histogram("request_seconds", "From a request's head to the end of its answer.", "route")
        self._first_byte = self._histogram("first_byte_seconds", "From a request's head to its answer's.", "route")
        self._waited = self._histogram("queue_wait_seconds", "From a job's coming to a process's taking it.", "pool")
        self._first_delta = self._histogram(
            "first_delta_seconds", "From a job's coming to the first text: a segment, or a token's.", "pool"
        )
        self._factor = Histogram(
            "starling_realtime_factor",
            "Seconds for a second of audio, of transcriptions of whole recordings, waiting included.",
            ["pool"],
            buckets=FACTORS,
            registry=self._registry,
        )
        self._audio = self._counter("audio_seconds", "Audio that was transcribed, in seconds.", "pool")
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts, cached ones included.", "pool")
        self._cached = self._counter("cached_tokens", "Tokens of prompts that the prompt cache had.", "pool")
        self._generated = self._counter("generated_tokens", "Tokens of answers.", "pool")
        self._forced = self._counter("forced_tokens", "Those of them that a shape left no choice about.", "pool")
        self._guessed = self._counter("guessed_tokens", "Those of them that were guessed right.", "pool")

    def answered(self, method: str, route: str | None, status: str, seconds: float, first_byte: float | None) -> None:
        """A request is over. route: as the URL map writes it; None: there is none. status: a number, or `cut`."""
        route = route or NOWHERE
        self._requests.labels(method if method in METHODS else "other", route, status).inc()
        self._seconds.labels(route).observe(seconds)
        if first_byte is not None:
            self._first_byte.labels(route).observe(first_byte)

    def given(self, pool: str, job: Job, waited_s: float) -> None:
        self._waited.labels(pool).observe(waited_s)

    def told(self, pool: str, job: Job, event: Event, seconds: float, *, first: bool) -> None:
        match event:
            case Segment() | Delta() if first:
                self._first_delta.labels(pool).observe(seconds)
            case Transcribed() if isinstance(job, Transcribe):
                self._transcribed(pool, job, seconds)
            case Generated() if isinstance(job, Chat | Complete):
                self._spent(pool, event)

    def text(self, now: Now) -> bytes:
        """The exposition. May be called by any thread."""
        return generate_latest(_Scrape(self._registry, now))

    def _transcribed(self, pool: str, job: Transcribe, seconds: float) -> None:
        self._audio.labels(pool).inc(job.audio.seconds)
        if job.audio.seconds and not job.urgent:
            self._factor.labels(pool).observe(seconds / job.audio.seconds)

    def _spent(self, pool: str, event: Generated) -> None:
        self._prompt.labels(pool).inc(event.prompt_tokens)
        self._cached.labels(pool).inc(event.cached_tokens)
        self._generated.labels(pool).inc(event.completion_tokens)
        self._forced.labels(pool).inc(event.forced_tokens)
        self._guessed.labels(pool).inc(event.guessed_tokens)
        self.kept[pool] = event.kept

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"starling_{name}", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, *labels: str) -> Histogram:
        return Histogram(f"starling_{name}", about, labels, buckets=WAITS, registry=self._registry)


class _Scrape(CollectorRegistry):
    """What was counted and what is now, as one registry; without the times at which each series began."""

    def __init__(self, counted: CollectorRegistry, now: Now) -> None:
        super().__init__()
        self._counted = counted
        self._now = now

    def collect(self) -> Iterator[Metric]:
        for metric in self._counted.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
        yield from _looked_at(self._now)


def _looked_at(now: Now) -> Iterable[Metric]:
    lines = now.processes
    yield _gauge("worker_rss_bytes", "Resident memory.", "worker", {each.name: each.rss_bytes for each in lines})
    yield _gauge("worker_up", "1: it is ready.", "worker", {each.name: int(each.state == "ready") for each in lines})
    yield _gauge("running_jobs", "Jobs that it works on.", "worker", {each.name: each.running for each in lines})
    yield _gauge("queued_jobs", "Jobs in front of its pool.", "worker", {each.name: each.queued for each in lines})
    restarts = CounterMetricFamily("starling_worker_restarts", "Processes after the first.", labels=["worker"])
    for each in lines:
        restarts.add_metric([each.name], each.restarts)
    yield restarts
    yield _gauge("sessions", "Dictations that are kept.", "state", now.sessions)
    yield GaugeMetricFamily("starling_session_bytes", "All dictations on disk.", now.session_bytes)
    yield GaugeMetricFamily("starling_spool_bytes", "Recordings under way, on disk.", now.spool_bytes)
    yield CounterMetricFamily("starling_spooled_bytes", "Recordings that were received.", now.spooled_bytes)
    yield _gauge("prompt_cache_bytes", "What it holds.", "pool", {pool: each.bytes for pool, each in now.kept.items()})


def _gauge(name: str, about: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"starling_{name}", about, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family
