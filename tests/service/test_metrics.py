"""What is counted: by bounded labels, and without what only the library is interested in."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from protocol.events import Generated, Kept, Segment, Timings, Transcribed
from protocol.jobs import Chat, Pcm, Transcribe
from service.metrics import Metrics, Now
from tests.asgi import ask
from tests.scripted import Scripted

NOTHING = Now([], {}, 0, 0, 0, {})
SPOKEN = Segment(0.0, 1.0, " Hello", (1,), 0, 0.0, -0.1, 1.0, 0.0)


def samples(text: str) -> dict[str, float]:
    """Every series by its name and labels, as `name{label=value}`."""
    return {
        f"{sample.name}{{{','.join(f'{name}={value}' for name, value in sorted(sample.labels.items()))}}}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(metrics: Metrics) -> dict[str, float]:
    return samples(metrics.text(NOTHING).decode())


def test_requests_are_counted_by_the_route_that_they_found_never_by_path_or_client(service: Scripted) -> None:
    ask(service.app, "GET", "/v1/models/whisper-1")
    ask(service.app, "GET", "/v1/models/secret")
    ask(service.app, "GET", "/secret")
    ask(service.app, "SECRET", "/health")
    text = ask(service.app, "GET", "/metrics").text
    found = samples(text)
    assert found["starling_requests_total{method=GET,route=/v1/models/{id:path},status=200}"] == 1
    assert found["starling_requests_total{method=GET,route=/v1/models/{id:path},status=404}"] == 1
    assert found["starling_requests_total{method=GET,route=none,status=404}"] == 1
    assert found["starling_requests_total{method=other,route=/health,status=405}"] == 1
    assert "secret" not in text.lower()


def test_a_request_s_first_byte_comes_before_its_end(service: Scripted) -> None:
    service.post()
    found = samples(ask(service.app, "GET", "/metrics").text)
    route = "{route=/v1/audio/transcriptions}"
    assert found[f"starling_first_byte_seconds_count{route}"] == found[f"starling_request_seconds_count{route}"] == 1
    assert 0 < found[f"starling_first_byte_seconds_sum{route}"] <= found[f"starling_request_seconds_sum{route}"]


def test_an_upload_s_bytes_are_counted_and_what_lies_on_disk_is_looked_at(service: Scripted) -> None:
    service.post(file=b"x" * 1000)
    found = samples(ask(service.app, "GET", "/metrics").text)
    assert (found["starling_spooled_bytes_total{}"], found["starling_spool_bytes{}"]) == (1000, 0)


def test_the_workers_and_sessions_of_the_moment_are_there(service: Scripted) -> None:
    found = samples(ask(service.app, "GET", "/metrics").text)
    assert found["starling_worker_up{worker=whisper}"] == 1
    assert found["starling_worker_up{worker=oracle}"] == 0
    assert found["starling_queued_jobs{worker=media}"] == 0
    assert found["starling_sessions{state=open}"] == 0


def test_the_first_text_of_a_job_and_its_waiting_are_timed() -> None:
    metrics, job = Metrics(), Transcribe(Pcm("", 0, 32_000))
    metrics.given("whisper", job, 0.5)
    metrics.told("whisper", job, SPOKEN, 1.0, first=True)
    metrics.told("whisper", job, SPOKEN, 9.0, first=False)
    found = told(metrics)
    assert found["starling_queue_wait_seconds_sum{pool=whisper}"] == 0.5
    assert found["starling_first_delta_seconds_sum{pool=whisper}"] == 1.0


def test_a_recording_s_factor_is_the_time_for_a_second_of_it() -> None:
    metrics = Metrics()
    end = Transcribed("en", None, Timings())
    metrics.told("whisper", Transcribe(Pcm("", 0, 32_000)), end, 1.0, first=False)
    metrics.told("whisper", Transcribe(Pcm("", 0, 16_000), urgent=True), end, 1.0, first=False)
    found = told(metrics)
    assert found["starling_realtime_factor_sum{pool=whisper}"] == 0.5
    assert found["starling_audio_seconds_total{pool=whisper}"] == 3.0


def test_tokens_are_counted_when_an_answer_ends() -> None:
    metrics = Metrics()
    end = Generated(10, 4, 7, forced_tokens=2, guessed_tokens=3, kept=Kept(1, 4096))
    metrics.told("llm", Chat(()), end, 1.0, first=False)
    metrics.told("llm", Chat(()), end, 1.0, first=False)
    found = told(metrics)
    names = ("prompt", "cached", "generated", "forced", "guessed")
    assert [found[f"starling_{name}_tokens_total{{pool=llm}}"] for name in names] == [20, 8, 14, 4, 6]
    assert metrics.kept == {"llm": Kept(1, 4096)}


def test_no_series_says_when_it_began() -> None:
    metrics = Metrics()
    metrics.answered("GET", "/health", "200", 0.1, 0.1)
    assert not any("_created" in name for name in told(metrics))


def test_two_houses_count_for_themselves() -> None:
    one, other = Metrics(), Metrics()
    one.answered("GET", "/health", "200", 0.1, None)
    assert "starling_requests_total{method=GET,route=/health,status=200}" not in told(other)
