"""What a model cannot do, said before anything runs. Pure: knows what the service is told of a model, no weights."""

from __future__ import annotations

from protocol.errors import InvalidValue, UnsupportedTask
from protocol.events import Model
from protocol.jobs import Guess, Transcribe


def refuse(job: Transcribe | Guess, model: Model) -> None:
    """Raises UnsupportedTask and InvalidValue."""
    if job.task == "translate" and not model.translates:
        raise UnsupportedTask(f"the model {model.id} was not trained to translate", param="model")
    for param, codes in (("language", (job.decoding.language,)), ("languages", job.decoding.languages)):
        for code in codes:
            if code is not None and code not in model.languages:
                raise InvalidValue(f"the model {model.id} does not know the language {code!r}", param=param)
