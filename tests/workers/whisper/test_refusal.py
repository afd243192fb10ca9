"""What a model is not asked to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import InvalidValue, UnsupportedTask, WrongModelKind
from protocol.events import Model
from protocol.jobs import Decode, Decoding, Pcm, Transcribe
from tests.workers.whisper.driver import READY
from tests.workers.whisper.toy import ToyModel
from workers.whisper.engine import WhisperEngine
from workers.whisper.refusal import refuse

ENGLISH = Model(
    id="whisper-tiny.en", kind="whisper", languages=("en",), translates=False, parameters=1, dtype="float32"
)
AUDIO = Pcm("/spool", 0, 16000)


def test_a_model_that_was_not_trained_for_it_translates_nothing() -> None:
    with pytest.raises(UnsupportedTask, match=r"the model whisper-tiny\.en was not trained to translate"):
        refuse(Transcribe(AUDIO, task="translate"), ENGLISH)


def test_an_unknown_language_is_named_with_its_field() -> None:
    with pytest.raises(InvalidValue, match="does not know the language 'de'") as language:
        refuse(Transcribe(AUDIO, decoding=Decoding(language="de")), ENGLISH)
    assert language.value.param == "language"
    with pytest.raises(InvalidValue) as languages:
        refuse(Transcribe(AUDIO, decoding=Decoding(languages=("en", "fr"))), ENGLISH)
    assert languages.value.param == "languages"


def test_what_the_model_can_do_is_not_refused() -> None:
    refuse(Transcribe(AUDIO, decoding=Decoding(language="en", languages=("en",))), ENGLISH)


def test_the_engine_refuses_in_admit_and_holds_no_job(tmp_path: Path) -> None:
    engine = WhisperEngine(ToyModel(), READY)
    with pytest.raises(InvalidValue):
        engine.admit(Transcribe(AUDIO, decoding=Decoding(language="yue")), lambda event: None)
    with pytest.raises(WrongModelKind):
        engine.admit(Decode(source=str(tmp_path), target=""), lambda event: None)
    assert not engine.busy
    assert engine.stats().jobs == 0
