"""A job's prompt as the ids that it is read by, and the job that asks for no more than their number. Runs no model."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.errors import Failure, InternalError
from protocol.events import Counted
from protocol.jobs import Chat, Complete
from workers.loop import Emit, failed

if TYPE_CHECKING:
    from workers.llm.history import History
    from workers.llm.language import Language
    from workers.llm.prompt import Prompt


def rendered(job: Chat | Complete, language: Language, history: History) -> tuple[Prompt, Sequence[int]]:
    """The prompt and its ids: those of an earlier conversation that it goes on from. Raises Failure."""
    prompt = language.render(job)
    if prompt.text is None:
        return prompt, prompt.ids
    return prompt, history.ids_of(prompt.text, prompt.ids, language.encode, language.decode)


@dataclass(frozen=True, eq=False)
class Counting:
    """An admitted job that is over once its prompt is rendered."""

    job: Chat
    emit: Emit

    def answer(self, language: Language, history: History) -> None:
        """Say how many tokens it has, or why it has none."""
        try:
            _, ids = rendered(self.job, language, history)
        except Failure as failure:
            self.emit(failed(failure))
        except Exception:
            traceback.print_exc()
            self.emit(failed(InternalError("counting met an error; the worker's log has the details")))
        else:
            self.emit(Counted(len(ids)))
