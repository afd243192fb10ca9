"""A session from its first chunk to its transcript, over workers that are scripts."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from protocol.errors import (
    AudioTooLong,
    InvalidRequest,
    InvalidValue,
    ModelNotConfigured,
    SequenceGap,
    SessionFailed,
    SessionFinishing,
    ShuttingDown,
    UndecodableAudio,
    UnknownSession,
    WorkerCrashed,
    WorkerStarting,
)
from protocol.events import Doubt, VocabularyReport
from protocol.jobs import Decode, Decoding, DetectSpeech, Follow, Heard, Raw, Transcribe
from service.dictation import turns
from service.dictation.chunk import Chunk
from service.dictation.store import Store, Stored
from service.transcripts import FORMATS
from tests.dictated import S16, cut, ears, pen, spoken, text
from tests.fakes import FakeWorker
from tests.service.dictation.conftest import dictation, spec

pytestmark = pytest.mark.anyio

TALK = spoken(0.5, 1, 2, 1.0, 3, 0.1, 4, 1.0, 5, 0.3)
"""Three utterances; the last one ends with the recording."""


async def test_what_was_said_is_the_text(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(TALK)
        transcript = await made.session.finish()
    assert transcript.text == text(1, 2, 3, 4, 5)
    assert (made.session.state, made.session.text) == ("finished", text(1, 2, 3, 4, 5))
    assert made.session.duration == transcript.meta.duration == 4.9


@pytest.mark.parametrize("samples", [1, 160, 321, 511, 512, 1600, 16_000, 80_000])
async def test_text_and_times_do_not_depend_on_the_chunks(store: Store, samples: int) -> None:
    small = 2 * samples * 100
    outcomes = []
    for name, size in (("cut", samples), ("whole", len(TALK))):
        async with dictation(store.create(spec(id=name))) as made:
            await made.say(TALK[:small], size)
            await made.say(TALK[small:], 1600)
            outcomes.append((await made.session.finish()).segments)
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) == 5


async def test_the_text_only_ever_grows_and_no_word_of_it_comes_twice(stored: Stored) -> None:
    seen = [""]
    words = list(range(1, 21))
    async with dictation(stored) as made:
        for word in words:
            await made.say(spoken(word, 0.8))
            seen.append(made.session.text)
        transcript = await made.session.finish()
    assert transcript.text == text(*words)
    assert all(later.startswith(earlier) for earlier, later in pairwise([*seen, transcript.text]))
    assert len(set(seen)) > 10


async def test_the_chunk_after_five_minutes_costs_what_the_first_one_did(stored: Stored) -> None:
    spent: list[float] = []
    async with dictation(stored, live=FakeWorker("live", {Follow: [asyncio.Event()]})) as made:
        for piece in [bytes(3200)] * 3000:
            began = time.perf_counter()
            await made.session.add(None, Chunk(S16, piece))
            spent.append(time.perf_counter() - began)
    assert stored.samples == 300 * 16_000
    assert len(stored.runs()) == 1
    # Medians: what else the machine does comes and goes.
    assert median(spent[-500:]) < 3 * median(spent[:500])


async def test_times_are_the_recording_s(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(TALK)
        transcript = await made.session.finish()
    assert [(segment.start, segment.end) for segment in transcript.segments] == [
        (0.5, 0.9),
        (0.9, 1.3),
        (2.3, 2.7),
        (2.8, 3.2),
        (4.2, 4.6),
    ]


async def test_an_utterance_is_written_while_the_next_is_spoken(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(spoken(0.5, 1, 2, 1.0))
        delta = await made.until("transcript.text.delta")
        assert (delta["delta"], made.session.text, made.session.state) == ("word1", "word1 word2", "open")


async def test_answers_tell_the_speech_and_what_was_committed_since_the_last(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(spoken(0.5))
        await made.say(spoken(1, 1.0))
        await made.until("transcript.text.delta")
        await made.say(spoken(0.2))
        await made.say(spoken(0.2))
        first, last = made.answers[0], made.answers[-1]
    assert (first.seq, first.samples, first.duration, first.speech, first.segments) == (0, 1600, 0.1, None, ())
    assert (last.samples, last.speech, last.segments) == (round(2.3 * 16_000), False, ())
    told = [segment for answer in made.answers for segment in answer.segments]
    assert [(segment["id"], segment["text"]) for segment in told] == [(0, " word1")]


async def test_a_chunk_is_answered_while_no_worker_answers(stored: Stored) -> None:
    never = asyncio.Event()
    live = FakeWorker("live", {Follow: [never]})
    async with dictation(stored, live) as made, asyncio.timeout(5):
        await made.say(TALK)
        assert made.answers[-1].speech is None


async def test_a_chunk_sent_again_gets_the_same_answer_and_is_not_added_twice(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(TALK)
        pieces = cut(TALK, 1600)
        again = [await made.session.add(seq, Chunk(S16, piece)) for seq, piece in enumerate(pieces)]
        assert again == made.answers
        transcript = await made.session.finish()
        assert [await made.session.add(seq, Chunk(S16, b"")) for seq in range(len(pieces))] == made.answers
    assert transcript.text == text(1, 2, 3, 4, 5)


async def test_chunks_without_numbers_are_numbered(stored: Stored) -> None:
    async with dictation(stored) as made:
        answers = [await made.session.add(None, Chunk(S16, piece)) for piece in cut(TALK, 1600)]
        assert [answer.seq for answer in answers] == list(range(49))


async def test_a_gap_is_refused_and_harms_nothing(stored: Stored) -> None:
    async with dictation(stored) as made:
        with pytest.raises(SequenceGap, match="the next one is 0"):
            await made.session.add(1, Chunk(S16, TALK))
        await made.say(TALK)
        assert (await made.session.finish()).text == text(1, 2, 3, 4, 5)


async def test_a_wrong_chunk_is_refused_and_harms_nothing(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(TALK[:32_000])
        with pytest.raises(InvalidValue):
            await made.session.add(None, Chunk(Raw(), b"\x00\x00\xc0\x7f"))
        await made.say(TALK[32_000:])
        assert (await made.session.finish()).text == text(1, 2, 3, 4, 5)


async def test_an_encoded_file_is_decoded_before_its_answer(stored: Stored) -> None:
    async with dictation(stored) as made:
        answer = await made.session.add(0, Chunk(None, TALK))
        assert (answer.samples, [type(job) for job in made.live.jobs][:1]) == (len(TALK) // 2, [Decode])
        await made.session.add(1, Chunk(S16, spoken(0.5, 6, 0.5)))
        assert (await made.session.finish()).text == text(1, 2, 3, 4, 5, 6)


async def test_a_file_that_is_none_leaves_nothing_behind(stored: Stored) -> None:
    live = FakeWorker("live", {**ears(), Decode: [UndecodableAudio("that is no audio")]})
    async with dictation(stored, live) as made:
        before = sorted(stored.folder.iterdir())
        with pytest.raises(UndecodableAudio):
            await made.session.add(0, Chunk(None, b"no audio at all"))
        assert (made.session.samples, sorted(stored.folder.iterdir())) == (0, before)
        await made.say(TALK)
        assert (await made.session.finish()).text == text(1, 2, 3, 4, 5)


@pytest.mark.parametrize("raw", [S16, None])
async def test_a_chunk_that_is_too_long_for_the_session_is_refused(stored: Stored, raw: Raw | None) -> None:
    async with dictation(stored, max_seconds=5.0) as made:
        await made.say(TALK)
        with pytest.raises(AudioTooLong):
            await made.session.add(None, Chunk(raw, spoken(0.2)))
        assert made.session.duration == 4.9
        assert (await made.session.finish()).text == text(1, 2, 3, 4, 5)


async def test_no_audio_is_an_empty_text_at_once_without_any_worker(stored: Stored) -> None:
    broken = WorkerCrashed("it is broken")
    live, whisper = FakeWorker("live", {}, failure=broken), FakeWorker("whisper", {}, failure=broken)
    async with dictation(stored, live, whisper) as made:
        transcript = await made.session.finish()
    assert (transcript.text, transcript.language, transcript.meta.duration) == ("", "unknown", 0.0)
    assert live.jobs == whisper.jobs == []


async def test_silence_is_an_empty_text_and_whisper_is_not_asked(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(spoken(3.0))
        assert (await made.session.finish()).segments == ()
    assert made.whisper.jobs == []


async def test_finish_twice_and_at_once_is_the_same_answer(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(TALK)
        one, other = await asyncio.gather(made.session.finish(), made.session.finish())
        again = await made.session.finish()
    write = FORMATS["verbose_json"].write
    assert write(one) == write(other) == write(again)


async def test_who_leaves_while_it_finishes_cancels_nothing(stored: Stored) -> None:
    gate = asyncio.Event()
    whisper = FakeWorker("whisper", {Transcribe: lambda job: [gate, *pen()[Transcribe](job)]})  # type: ignore[operator]
    async with dictation(stored, whisper=whisper) as made:
        await made.say(TALK)
        leaving = asyncio.create_task(made.session.finish())
        await until(lambda: bool(whisper.jobs))
        leaving.cancel()
        await asyncio.wait([leaving])
        gate.set()
        assert (await made.session.finish()).text == text(1, 2, 3, 4, 5)


async def test_no_audio_is_taken_once_it_finishes(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(TALK)
        finishing = asyncio.create_task(made.session.finish())
        await until(lambda: made.session.state != "open")
        with pytest.raises(SessionFinishing):
            await made.session.add(None, Chunk(S16, TALK))
        assert (await finishing).text == text(1, 2, 3, 4, 5)
        with pytest.raises(SessionFinishing):
            await made.session.add(None, Chunk(S16, TALK))


async def test_each_utterance_is_heard_with_those_before_it_and_told_what_they_said(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(TALK)
        transcript = await made.session.finish()
    jobs = committed(made.whisper)
    assert len({job.audio.start for job in jobs}) == 1
    said = [[past.tokens[0] for past in job.context.said] if job.context else [] for job in jobs]
    assert said == [[], [1, 2], [1, 2, 3, 4]]
    assert [(job.decoding.prompt, job.decoding.before) for job in jobs] == [(None, "")] * 3
    assert [segment.tokens[0] for segment in transcript.segments] == [1, 2, 3, 4, 5]
    assert [round(segment.start, 1) for segment in transcript.segments] == [0.5, 0.9, 2.3, 2.8, 4.2]


async def test_a_request_s_prompt_and_vocabulary_stand_in_front_of_each(store: Store) -> None:
    decoding = Decoding(prompt="Birds.", vocabulary=("Starling",), condition_on_previous_text=True)
    async with dictation(store.create(spec(decoding=decoding))) as made:
        await made.say(TALK)
        transcript = await made.session.finish()
    jobs = committed(made.whisper)
    assert [(job.decoding.prompt, job.decoding.before) for job in jobs] == [("Birds.", "")] * 3
    assert {job.decoding.vocabulary for job in jobs} == {("Starling",)}
    assert transcript.meta.vocabulary == VocabularyReport(1, 1, 2, 80)


async def test_without_conditioning_no_utterance_knows_of_another(store: Store) -> None:
    decoding = Decoding(prompt="Birds.", condition_on_previous_text=False)
    async with dictation(store.create(spec(decoding=decoding))) as made:
        await made.say(TALK)
        await made.session.finish()
    assert {(job.decoding.prompt, job.decoding.before) for job in committed(made.whisper)} == {("Birds.", "")}


async def test_a_language_that_was_detected_for_sure_is_kept(stored: Stored) -> None:
    async with dictation(stored) as made:
        await made.say(TALK)
        transcript = await made.session.finish()
    assert [job.decoding.language for job in committed(made.whisper)] == [None, "en", "en"]
    assert (transcript.meta.language, transcript.meta.language_probability) == ("en", 0.9)


async def test_windows_are_written_as_they_fill_and_the_rest_at_the_end(store: Store) -> None:
    audio = spoken(*(part for word in range(1, 41) for part in (word, 1.6)))
    async with dictation(store.create(spec(segmentation="window"))) as made:
        await made.say(audio, 16_000)
        assert (await made.until("transcript.text.delta"))["delta"] == "word1"
        assert made.session.state == "open"
        transcript = await made.session.finish()
    assert transcript.text == text(*range(1, 41))
    jobs = [job for job in made.whisper.jobs if isinstance(job, Transcribe)]
    assert [(job.audio.start, job.whole) for job in jobs] == [(0, False), (0, False), (0, True)]
    assert [segment.start for segment in transcript.segments] == [round(2.0 * n, 3) for n in range(40)]


async def test_a_worker_that_crashes_costs_nothing(stored: Stored) -> None:
    fails = [WorkerCrashed("gone"), WorkerCrashed("gone")]

    def crash_twice(kind: Any, script: Any) -> Any:
        return lambda job: [fails.pop()] if fails else script[kind](job)

    whisper = FakeWorker("whisper", {Transcribe: crash_twice(Transcribe, pen())})
    async with dictation(stored, whisper=whisper) as made:
        await made.say(TALK)
        assert (await made.session.finish()).text == text(1, 2, 3, 4, 5)
    assert fails == []


async def test_a_job_that_ends_its_worker_over_and_over_fails_the_session_and_keeps_its_audio(stored: Stored) -> None:
    whisper = FakeWorker("whisper", {Transcribe: [WorkerCrashed("gone")]})
    async with dictation(stored, whisper=whisper) as made:
        await made.say(TALK, len(TALK))
        with pytest.raises(SessionFailed):
            await made.session.finish()
        (_, event), *_ = reversed(await made.events())
        assert (made.session.state, event["type"], event["error"]["code"]) == ("failed", "error", "session_failed")
        with pytest.raises(SessionFailed):
            await made.session.add(None, Chunk(S16, TALK))
    assert len(whisper.jobs) == turns.POISON
    assert stored.samples == len(TALK) // 2


async def test_a_refusal_is_not_tried_again(stored: Stored) -> None:
    whisper = FakeWorker("whisper", {Transcribe: [InvalidRequest("no")]})
    async with dictation(stored, whisper=whisper) as made:
        await made.say(TALK, len(TALK))
        with pytest.raises(SessionFailed):
            await made.session.finish()
    assert len(whisper.jobs) == 1


async def test_a_session_waits_for_the_model_that_can_do_what_it_asks(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(turns, "LONGEST_DELAY", 0.01)
    refusals = [InvalidValue("it does not know the language 'de'")]
    writing: Any = pen()[Transcribe]

    def write(job: Transcribe) -> Any:
        return refusals if refusals else writing(job)

    whisper = FakeWorker("whisper", {Transcribe: write})
    async with dictation(stored, whisper=whisper) as made:
        await made.say(TALK)
        with pytest.raises(ModelNotConfigured, match="does not know the language 'de'"):
            await made.session.finish()
        assert made.session.state == "finishing"
        refusals.clear()
        await made.until("transcript.text.done")
        assert (await made.session.finish()).text == text(1, 2, 3, 4, 5)


async def test_finish_says_when_no_worker_can_serve_and_the_session_goes_on_behind(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(turns, "LONGEST_DELAY", 0.01)
    whisper = FakeWorker("whisper", pen(), failure=WorkerStarting("it is not ready"))
    async with dictation(stored, whisper=whisper) as made:
        await made.say(TALK)
        with pytest.raises(WorkerStarting):
            await made.session.finish()
        assert made.session.state == "finishing"
        whisper.failure = None
        await made.until("transcript.text.done")
        assert (await made.session.finish()).text == text(1, 2, 3, 4, 5)


async def test_doubts_about_an_utterance_s_padding_are_settled_however_often_the_detector_crashes(store: Store) -> None:
    crashes = [WorkerCrashed("gone"), WorkerCrashed("gone")]
    listening = ears()

    def detect(job: DetectSpeech) -> Any:
        return [crashes.pop()] if crashes else listening[DetectSpeech](job)  # type: ignore[operator]

    def doubt(job: Transcribe) -> Any:
        return [Doubt(0.0, 1.0), Doubt(job.audio.seconds - 0.1, job.audio.seconds), *pen()[Transcribe](job)]  # type: ignore[operator]

    live = FakeWorker("live", {**listening, DetectSpeech: detect})
    whisper = FakeWorker("whisper", {Transcribe: doubt})
    async with dictation(store.create(spec(vad_threshold=0.3, vad_min_speech_ms=200)), live, whisper) as made:
        await made.say(spoken(0.5, 1, 1.0))
        await made.session.finish()
    assert (whisper.heard, crashes) == ([Heard(speech=True), Heard(speech=False)], [])
    asked = [job for job in live.jobs if isinstance(job, DetectSpeech)]
    assert {(job.threshold, job.min_speech_ms) for job in asked} == {(0.3, 200)}


async def test_a_closed_session_takes_and_gives_nothing(stored: Stored) -> None:
    gate = asyncio.Event()
    whisper = FakeWorker("whisper", {Transcribe: [gate]})
    async with dictation(stored, whisper=whisper) as made:
        await made.say(TALK)
        waiting = asyncio.create_task(made.session.finish())
        await until(lambda: bool(whisper.jobs))
        await made.session.close("deleted")
        with pytest.raises(UnknownSession):
            await waiting
        with pytest.raises(UnknownSession):
            await made.session.add(None, Chunk(S16, TALK))
        assert (await made.events())[-1][1] == {"type": "session.closed", "reason": "deleted"}
        assert whisper.running == 0


async def test_a_service_that_ends_tells_those_who_wait(stored: Stored) -> None:
    gate = asyncio.Event()
    live = FakeWorker("live", {**ears(), Decode: [gate]})
    whisper = FakeWorker("whisper", {Transcribe: [gate]})
    async with dictation(stored, live, whisper) as made:
        await made.say(TALK)
        adding = asyncio.create_task(made.session.add(None, Chunk(None, TALK)))
        await until(lambda: any(isinstance(job, Decode) for job in live.jobs))
        reading = asyncio.create_task(made.events())
        finishing = asyncio.create_task(made.session.finish())
        await made.session.stop()
        for task in (adding, reading, finishing):
            with pytest.raises(ShuttingDown):
                await task
    assert (live.running, whisper.running) == (0, 0)


def committed(whisper: FakeWorker) -> list[Transcribe]:
    """The transcriptions that were not called off."""
    return [job for job in whisper.jobs if isinstance(job, Transcribe) and job not in whisper.cancelled]


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
