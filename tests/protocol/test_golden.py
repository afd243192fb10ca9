"""One frame of each message, byte for byte: a change of the wire shows in review, as a change of tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from protocol.events import FromWorker
from protocol.jobs import ToWorker
from protocol.settings import Settings
from protocol.wire import Codec, frame

GOLDEN = Path(__file__).parents[1] / "golden"
UNIONS = {"down": ToWorker, "up": FromWorker, "settings": Settings}
MESSAGES = [(way, member) for way, union in UNIONS.items() for member in get_args(union)]


class Golden(msgspec.Struct, forbid_unknown_fields=True):
    """What a file holds. `message` is the frame's content as a person reads it, `hex` the frame."""

    direction: str
    job: int
    message: dict[str, Any]
    hex: str


def golden(tag: str) -> Golden:
    return msgspec.json.decode((GOLDEN / f"{tag}.json").read_bytes(), type=Golden)


def tag(member: type[msgspec.Struct]) -> str:
    name = member.__struct_config__.tag
    assert isinstance(name, str), f"{member.__name__} has no tag"
    return name


@pytest.mark.parametrize(("way", "member"), MESSAGES, ids=lambda value: value if isinstance(value, str) else tag(value))
def test_a_message_has_a_golden_frame_and_encodes_to_exactly_it(way: str, member: type[msgspec.Struct]) -> None:
    file = golden(tag(member))
    message = msgspec.convert(file.message, type=member)
    assert frame(file.job, message).hex() == file.hex
    assert Codec[Any](UNIONS[way]).decode(bytes.fromhex(file.hex)[4:]) == (file.job, message)
    assert file.direction == way


@pytest.mark.parametrize(("way", "member"), MESSAGES, ids=lambda value: value if isinstance(value, str) else tag(value))
def test_a_golden_frame_names_every_field(way: str, member: type[msgspec.Struct]) -> None:
    assert set(golden(tag(member)).message) == {"type", *member.__struct_fields__}


def test_no_golden_frame_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == {tag(member) for _, member in MESSAGES}
