"""Frames: what goes in comes out, and whatever is no frame is said to be none."""

from __future__ import annotations

import asyncio
import io
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.events import (
    TERMINAL,
    Counted,
    Decoded,
    Embedded,
    Failed,
    Followed,
    FromWorker,
    Generated,
    Guessed,
    Loading,
    Mounted,
    Progress,
    Segment,
    Speech,
    Transcribed,
)
from protocol.jobs import Cancel, Decode, Pcm, ToWorker, Transcribe
from protocol.wire import MAX_FRAME, Codec, FrameError, frame

UP = Codec[FromWorker](FromWorker)
DOWN = Codec[ToWorker](ToWorker)

TEXT = st.text(max_size=40)
JOBS = st.one_of(
    st.builds(Decode, source=TEXT, target=TEXT),
    st.builds(Transcribe, audio=st.builds(Pcm, path=TEXT, start=st.integers(0, 2**40), stop=st.integers(0, 2**40))),
    st.just(Cancel()),
)
EVENTS = st.one_of(
    st.builds(Loading, message=TEXT, done=st.integers(0, 2**50), total=st.integers(0, 2**50)),
    st.builds(Progress, done=st.floats(allow_nan=False), total=st.floats(allow_nan=False)),
    st.builds(Segment, text=TEXT, temperature=st.floats(0, 1), start=st.floats(0, 1e6), end=st.floats(0, 1e6),
              avg_logprob=st.floats(-9, 0), compression_ratio=st.floats(0, 9), no_speech_prob=st.floats(0, 1),
              tokens=st.lists(st.integers(0, 51865)).map(tuple), seek=st.integers(0, 2**40)),
    st.builds(Failed),
)  # fmt: skip
IDS = st.integers(0, 2**63 - 1)


async def read_async(codec: Codec[Any], data: bytes) -> Any:
    pipe = asyncio.StreamReader()
    pipe.feed_data(data)
    pipe.feed_eof()
    return await codec.read_async(pipe)


def both(codec: Codec[Any], data: bytes) -> tuple[Any, Any]:
    return codec.read(io.BytesIO(data)), asyncio.run(read_async(codec, data))


@settings(deadline=None)
@given(IDS, JOBS)
def test_a_job_comes_out_as_it_went_in(number: int, job: ToWorker) -> None:
    assert both(DOWN, frame(number, job)) == ((number, job), (number, job))


@settings(deadline=None)
@given(IDS, EVENTS)
def test_an_event_comes_out_as_it_went_in(number: int, event: FromWorker) -> None:
    assert both(UP, frame(number, event)) == ((number, event), (number, event))


@given(st.lists(st.tuples(IDS, JOBS), max_size=5))
def test_frames_follow_each_other_without_a_gap(frames: list[tuple[int, ToWorker]]) -> None:
    pipe = io.BytesIO(b"".join(frame(*each) for each in frames))
    assert list(iter(lambda: DOWN.read(pipe), None)) == frames


def test_the_end_of_the_stream_is_none() -> None:
    assert both(UP, b"") == (None, None)


@pytest.mark.parametrize("length", range(1, len(frame(3, Cancel()))))
def test_a_cut_frame_is_an_error_to_a_worker_and_the_end_to_the_service(length: int) -> None:
    cut = frame(3, Cancel())[:length]
    with pytest.raises(FrameError, match="the stream ended within"):
        DOWN.read(io.BytesIO(cut))
    assert asyncio.run(read_async(DOWN, cut)) is None


@pytest.mark.parametrize("length", [MAX_FRAME + 1, 0xFFFFFFFF, int.from_bytes(b"Load")])
def test_an_oversized_frame_is_refused_before_it_is_read(length: int) -> None:
    prefix = length.to_bytes(4, "big")
    with pytest.raises(FrameError, match=f"a frame of {length} bytes is over 16777216"):
        DOWN.read(io.BytesIO(prefix))
    with pytest.raises(FrameError, match=f"a frame of {length} bytes is over 16777216"):
        asyncio.run(read_async(DOWN, prefix))


def test_an_oversized_message_is_not_framed() -> None:
    with pytest.raises(FrameError, match="a Decode frame of 16777"):
        frame(1, Decode(source="x" * MAX_FRAME, target=""))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not msgpack",
        msgspec.msgpack.encode("a string"),
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode(["1", {"type": "cancel"}]),
        msgspec.msgpack.encode([1, {"type": "unheard_of"}]),
        msgspec.msgpack.encode([1, {"type": "decode", "source": 3, "target": ""}]),
        msgspec.msgpack.encode([1, {"type": "decode", "source": "no target"}]),
        msgspec.msgpack.encode([1, {"type": "ready", "capacity": 1}]),
    ],
)
def test_what_is_no_message_of_this_direction_is_a_frame_error(body: bytes) -> None:
    with pytest.raises(FrameError):
        DOWN.decode(body)
    with pytest.raises(FrameError):
        asyncio.run(read_async(DOWN, len(body).to_bytes(4, "big") + body))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_message_the_end_or_a_frame_error(data: bytes) -> None:
    try:
        read = DOWN.read(io.BytesIO(data))
    except FrameError:
        return
    assert read is None or isinstance(read[1], get_args(ToWorker))


def test_terminal_events_end_jobs_and_nothing_else_does() -> None:
    assert set(TERMINAL) == {
        Decoded,
        Speech,
        Followed,
        Transcribed,
        Guessed,
        Generated,
        Counted,
        Mounted,
        Embedded,
        Failed,
    }
