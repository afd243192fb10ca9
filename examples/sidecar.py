"""A Starling of an application's own: started with it, used by it alone, gone with it.

    python examples/sidecar.py talk.wav

`Sidecar` is all that an application needs: a private Unix socket, a key that is made for this run, and a pipe whose end
ends the server, however this program ends (kill -9 too). Needs httpx. With `--port 0` instead of `--uds`, the
ready file says which port it became.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

START_S = 30.0
"""To listen; models load behind that, and requests wait for them."""
END_S = 60.0
"""More than the server's own grace."""


class Sidecar:
    """A server of our own. `client` is an httpx.Client that knows where it is and has its key."""

    client: httpx.Client

    def __init__(self, flags: Sequence[str] = (), command: Sequence[str] = ("starling", "serve")) -> None:
        # Its default has a short path, which a socket needs, and mode 0700.
        self._folder = tempfile.TemporaryDirectory(prefix="starling-")
        self._ready = Path(self._folder.name) / "ready.json"
        own = ("--uds", f"{self._folder.name}/socket", "--api-key", "generate", "--ready-file", str(self._ready))
        self._command = [*command, *own, "--exit-with-parent", *flags]

    def __enter__(self) -> Self:
        """Raises RuntimeError when it does not start."""
        # Its standard input is the pipe; nothing is ever written to it. A session of its own: Ctrl-C is ours.
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            told = self._told()
        except BaseException:
            self._end()
            raise
        self.client = httpx.Client(
            transport=httpx.HTTPTransport(uds=told["uds"]),
            base_url="http://starling",
            headers={"authorization": f"Bearer {told['api_key']}"},
            timeout=httpx.Timeout(10.0, read=None),
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._end()

    def _told(self) -> dict[str, str]:
        """What the ready file says. It appears whole, as soon as the server listens."""
        deadline = time.monotonic() + START_S
        while not self._ready.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}; its log says why")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server does not listen after {START_S:g} s")
            time.sleep(0.02)
        told: dict[str, str] = json.loads(self._ready.read_bytes())
        return told

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    # In a virtual environment that is not activated, it stands beside the interpreter.
    beside = Path(sys.executable).with_name("starling")
    command = (str(beside) if beside.exists() else "starling", "serve")
    with Path(sys.argv[1]).open("rb") as recording, Sidecar(command=command) as sidecar:
        answer = sidecar.client.post("/v1/audio/transcriptions", files={"file": recording})
        print(answer.json()["text"] if answer.is_success else answer.text)


if __name__ == "__main__":
    main()
