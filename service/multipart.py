"""multipart/form-data as it arrives: text fields are kept, the one file goes to a sink. Memory does not grow with it.

Knows the wire format and its limits; knows neither HTTP nor what the fields mean.
"""

from __future__ import annotations

from collections.abc import Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from protocol.errors import InvalidRequest, InvalidValue, MissingField, PayloadTooLarge
from service.forms import Entry

FILE = "file"

MAX_PARTS = 16_384
"""Twice the 8192 vocabulary terms, each in a part of its own: more is refused as a list that is too long there."""

MAX_FIELD_BYTES = 32 << 20
"""All text fields together, as much as a JSON body may have."""

Sink = Callable[[memoryview], None]

ONE_FILE = "send the recording as one file part named `file` (with curl: -F file=@recording.wav)"


class Form:
    """Feed it the body, then `end()`. The file's bytes go to `sink` at once; everything else waits in `entries`."""

    def __init__(self, boundary: bytes, sink: Sink) -> None:
        """Raises InvalidRequest for a boundary that cannot be one."""
        self.entries: list[Entry] = []
        self._sink = sink
        self._parts = 0
        self._files = 0
        self._field_bytes = 0
        self._ended = False
        self._header = (bytearray(), bytearray())
        self._disposition = ""
        self._name = ""
        self._text: bytearray | None = None
        self._keep = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers,
                    "on_part_data": self._on_data,
                    "on_part_end": self._on_end,
                    "on_end": self._finish,
                },
            )
        except FormParserError as error:
            raise InvalidRequest("the boundary of the multipart body is too long") from error

    def feed(self, chunk: bytes) -> None:
        """Raises InvalidRequest for a body that is none, PayloadTooLarge, and whatever the sink raises."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidRequest(
                "the body is no multipart/form-data with the boundary that Content-Type names"
            ) from error

    def end(self) -> None:
        """Raises InvalidRequest for a body that was cut, MissingField when it had no file."""
        if not self._ended:
            raise InvalidRequest("the multipart body ends before its last boundary")
        if not self._files:
            raise MissingField(f"there is no file: {ONE_FILE}", param=FILE)

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidRequest(f"the form has more than {MAX_PARTS} parts")
        self._disposition = ""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _on_header_end(self) -> None:
        name, value = (part.decode("latin-1") for part in self._header)
        if name.lower() == "content-disposition":
            self._disposition = value
        for part in self._header:
            part.clear()

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if not self._name:
            raise InvalidRequest("a part of the form has no name")
        part = Entry(self._name, None)
        if part.base == FILE and part.key is None:
            self._name = FILE  # `file[]`, as some clients write every field.
        # What a file is called never matters, only that it is one: `filename*` is no form's own, but sent.
        is_file = b"filename" in options or "filename*=" in self._disposition.lower()
        self._text = None if is_file else bytearray()
        self._keep = is_file and self._name == FILE
        if self._keep:
            self._files += 1
            if self._files > 1:
                raise InvalidValue(f"there is more than one file: {ONE_FILE}", param=FILE)
        elif self._name == FILE:
            raise InvalidValue(f"file is a text field, not an upload: {ONE_FILE}", param=FILE)
        elif is_file:
            self.entries.append(Entry(self._name, None))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._keep:
            self._sink(memoryview(data)[start:end])
        elif self._text is not None:
            self._field_bytes += end - start
            if self._field_bytes > MAX_FIELD_BYTES:
                raise PayloadTooLarge(f"the form's text fields are larger than {MAX_FIELD_BYTES} bytes together")
            self._text.extend(data[start:end])

    def _on_end(self) -> None:
        if self._text is not None:
            self.entries.append(Entry(self._name, self._text.decode("utf-8", "surrogateescape")))
        self._text = None
        self._keep = False

    def _finish(self) -> None:
        self._ended = True
