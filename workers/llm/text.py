"""One choice's tokens as what its client may see: whole characters, no stop string, no marker, reasoning apart.

Knows a tokenizer and what was asked for; knows neither rows nor events but the shape of a token's log-probability.

A character goes through up to three gates, each of which may hold it back until more is known:

    before any text      is this the marker that opens reasoning?      no: it is content
    within reasoning     is this the marker that closes it?            no: it is reasoning
    content              does this belong to a call of a tool?         no: it is text
    text                 is this a stop string?                        no: the client gets it

Reasoning is opened by the prompt (`thinking`) or by the answer's first characters that are no space, and closed once:
whatever else looks like a marker is text. White space around a marker is dropped. Stop strings end text, neither
reasoning nor a call. The stop string that is complete first wins; of those complete at once, the longest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from protocol.events import Candidate, Said
from protocol.tools import CallPart
from workers.llm.calls import Calling, Calls
from workers.llm.spelling import spelling
from workers.llm.trace import MAX_ROUTES, Route, Way
from workers.llm.watch import Watch

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


@dataclass(frozen=True)
class Piece:
    """What is new. Falsy when that is nothing."""

    text: str = ""
    reasoning: str = ""
    said: tuple[Said, ...] = ()
    """The tokens of the text that is out with this piece, if log-probabilities were asked for: none of reasoning, none
    that a stop string has a part of."""
    calls: tuple[CallPart, ...] = ()
    """They come after the text."""

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.said or self.calls)


class _At(Enum):
    START = auto()
    """White space at most, where a model may begin to reason."""
    REASONING = auto()
    CONTENT = auto()


@dataclass
class _Group:
    """Tokens that together end where a character ends: mostly one."""

    tokens: int = 0
    left: int = 0
    """Characters whose fate is open."""
    complete: bool = False
    spoken: bool = False
    """Some of it is text."""
    called: bool = False
    """Some of it belongs to a call."""
    said: list[Said] = field(default_factory=list)


class Voice:
    """The text of one choice while it is written."""

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        *,
        stop: tuple[str, ...],
        thinking: bool,
        logprobs: bool,
        continues: bool = False,
        calling: Calling | None = None,
        call_ids: Sequence[str] = (),
    ) -> None:
        """thinking: the prompt has opened a block of reasoning. continues: the answer goes on with the prompt's text
        (a completion): a space at its start belongs to it and nothing in it is a marker. calling: what it may call.
        call_ids: of its first calls, where they are known."""
        self.stopped: str | None = None
        self.reasoning_tokens = 0
        """Markers and the space around them included."""
        self._spelling = spelling(tokenizer, continues=continues)
        self._stops = [Watch(each) for each in stop if each]
        self._calls = Calls(calling, call_ids) if calling is not None else None
        self._opens: str = "" if continues else tokenizer.think_start or ""
        self._closes = Watch(tokenizer.think_end or "") if self._opens else None
        opening: tuple[int, ...] = (tokenizer.think_start_tokens or ()) if self._opens else ()
        self._opening = opening[0] if len(opening) == 1 else None
        self._at = _At.REASONING if thinking and self._opens else _At.START if self._opens else _At.CONTENT
        self._logprobs = logprobs
        self._groups: deque[_Group] = deque()
        self._skip = self._at is _At.REASONING
        """White space that comes now stands beside a marker."""
        self._marker = ""
        """Held back: perhaps the opening marker."""
        self._thought = ""
        """Held back: perhaps the closing one."""
        self._content = ""
        """Held back: perhaps a stop string."""
        self._text = ""
        self._reasoning = ""
        self._said: list[Said] = []
        self._routes: list[Route] = []
        self._visible = False

    @property
    def reasoning(self) -> bool:
        """What comes next is reasoning, or ends it."""
        return self._at is _At.REASONING

    @property
    def settled(self) -> bool:
        """All is out of the tokens that were said, and nothing is held back."""
        return not self._groups

    @property
    def opening(self) -> int | None:
        """The token that may open reasoning now; None where nothing can, or no single token does."""
        return self._opening if self._at is _At.START and not self._marker else None

    @property
    def called(self) -> bool:
        """It has made a call."""
        return self._calls is not None and self._calls.count > 0

    @property
    def enough(self) -> bool:
        """It has made the only call that is wanted."""
        return self._calls is not None and self._calls.enough

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(self._routes)

    def feed(self, token: int, logprob: float = 0.0, likeliest: Sequence[tuple[int, float]] = ()) -> Piece:
        """Say one more token, no end of text. likeliest: (token, its log-probability), the best first."""
        # Before the token is taken: what others would have been in its place.
        others = tuple(self._candidate(*each) for each in likeliest) if self._logprobs else ()
        data, text = self._spelling.take(token)
        before = self._at
        self._join(Said(_spelt(data), data, logprob, others) if self._logprobs else None, len(text))
        for char in text:
            self._hear(char)
            if self.stopped is not None:
                self._groups.clear()
                break
        piece = self._speak()
        if not self._visible and len(self._routes) < MAX_ROUTES:
            marker = (before is _At.REASONING) is not (self._at is _At.REASONING)
            self._routes.append(Route(_spelt(data), self._way(piece, marker=marker)))
            self._visible = bool(piece.text or piece.reasoning or piece.calls)
        return piece

    def end(self, *, cut: bool = False) -> Piece:
        """Nothing more comes. What was held back is let go, but for half a character; it may hold a stop string.

        cut: there was no room for more.
        """
        if self.stopped is not None:
            return Piece()
        held, self._marker = self._marker, ""
        for char in held:
            self._hear_content(char)
        if self._calls is not None and self.stopped is None:
            self._sort(*self._calls.end(cut=cut))
        if self.stopped is None:
            self._say(self._content)
            self._think(self._thought)
            # Half characters have their bytes at least.
            for group in self._groups:
                group.complete = True
                group.spoken = group.spoken or self._at is not _At.REASONING
            self._settle()
        return self._speak()

    # What becomes of a character.

    def _hear(self, char: str) -> None:
        match self._at:
            case _At.START:
                self._hear_start(char)
            case _At.REASONING:
                self._hear_reasoning(char)
            case _At.CONTENT:
                self._hear_content(char)

    def _hear_start(self, char: str) -> None:
        held, self._marker = self._marker + char, ""
        if held == self._opens:
            self._forget_stops()
            self._leave(len(held))
            self._at, self._skip = _At.REASONING, True
        elif self._opens.startswith(held):
            self._marker = held
        else:
            if not held.isspace():
                self._at = _At.CONTENT
            for each in held:
                if self.stopped is None:
                    self._hear_content(each)

    def _hear_reasoning(self, char: str) -> None:
        assert self._closes is not None
        self._thought += char
        if self._closes.see(char):
            self._leave(len(self._thought))
            self._thought = ""
            self._at, self._skip = _At.CONTENT, True
            return
        out = len(self._thought) - self._closes.matched
        self._think(self._thought[:out])
        self._thought = self._thought[out:]

    def _hear_content(self, char: str) -> None:
        if self._skip and char.isspace():
            self._leave(1)
            return
        self._skip = False
        if self._calls is None:
            self._hear_text(char)
        elif self._calls.enough:
            self._leave(1, called=True)
        else:
            outside = not self._calls.inside
            found = self._calls.hear(char)
            if outside and self._calls.inside:
                self._forget_stops()
            self._sort(*found)

    def _sort(self, text: str, dropped: int) -> None:
        """What is known of characters that may have belonged to a call."""
        self._leave(dropped, called=True)
        for char in text:
            if self.stopped is None:
                self._hear_text(char)

    def _forget_stops(self) -> None:
        """What a stop string might have begun with ends here."""
        self._say(self._content)
        self._stops = [Watch(each.wanted) for each in self._stops]
        self._content = ""

    def _hear_text(self, char: str) -> None:
        self._content += char
        hits = [each.wanted for each in self._stops if each.see(char)]
        if hits:
            self.stopped = max(hits, key=len)
            self._say(self._content[: -len(self.stopped)])
            self._content = ""
            return
        out = len(self._content) - max((each.matched for each in self._stops), default=0)
        self._say(self._content[:out])
        self._content = self._content[out:]

    # What is out.

    def _say(self, text: str) -> None:
        self._text += text
        self._leave(len(text), spoken=True)

    def _think(self, text: str) -> None:
        shown = text.lstrip() if self._skip else text
        self._skip = self._skip and not shown
        self._reasoning += shown
        self._leave(len(text))

    def _join(self, said: Said | None, characters: int) -> None:
        """A token's characters are about to be heard."""
        if not self._groups or self._groups[-1].complete:
            self._groups.append(_Group())
        group = self._groups[-1]
        group.tokens += 1
        group.left += characters
        group.complete = not self._spelling.waiting
        # A token without a character of its own belongs to what it stands among.
        if group.complete and not group.left and self._at is not _At.REASONING:
            group.called = self._calls is not None and self._calls.inside
            group.spoken = not group.called
        if said is not None:
            group.said.append(said)

    def _leave(self, characters: int, *, spoken: bool = False, called: bool = False) -> None:
        """The fate of the oldest characters is known."""
        while characters:
            group = self._groups[0]
            taken = min(characters, group.left)
            group.left -= taken
            group.spoken = group.spoken or spoken
            group.called = group.called or called
            characters -= taken
            self._settle()

    def _settle(self) -> None:
        while self._groups and self._groups[0].complete and not self._groups[0].left:
            group = self._groups.popleft()
            if group.spoken:
                self._said += group.said
            elif not group.called:
                self.reasoning_tokens += group.tokens

    def _speak(self) -> Piece:
        self._settle()
        calls = self._calls.take() if self._calls is not None else ()
        piece = Piece(self._text, self._reasoning, tuple(self._said), calls)
        self._text, self._reasoning = "", ""
        self._said.clear()
        return piece

    def _candidate(self, token: int, logprob: float) -> Candidate:
        data = self._spelling.bytes_of(token)
        return Candidate(_spelt(data), data, logprob)

    def _way(self, piece: Piece, *, marker: bool) -> Way:
        if self.stopped is not None:
            return "stop"
        if piece.text:
            return "text"
        if piece.calls:
            return "call"
        if piece.reasoning:
            return "reasoning"
        return "marker" if marker else "held back"


def _spelt(data: bytes) -> str:
    r"""A token's text; bytes of half a character as OpenAI writes them, \xe2."""
    return data.decode("utf-8", "backslashreplace")
