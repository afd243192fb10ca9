"""Where a service may listen, whom it lets in there, and which keys it starts with. No process."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.__main__ import main
from service.cli import keys, private
from service.cli.listening import LONGEST_PATH, check_reach, listen_unix, opened
from service.cli.ready_file import ReadyFile
from service.cli.refusal import CannotServe
from service.config import Config


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(config: Config) -> str:
    with pytest.raises(CannotServe) as caught:
        opened(config)
    return str(caught.value)


@pytest.fixture
def everywhere() -> Iterator[socket.socket]:
    """Bound to all addresses, though nobody is let in."""
    with socket.socket() as bound:
        bound.bind(("0.0.0.0", 0))
        yield bound


def test_other_machines_are_let_in_with_a_key_or_when_told_to(everywhere: socket.socket) -> None:
    with pytest.raises(CannotServe, match=r"^0\.0\.0\.0 can be reached from other machines, .*--insecure$"):
        check_reach(everywhere, Config(host="0.0.0.0"))
    check_reach(everywhere, Config(host="0.0.0.0", api_key=("k",)))
    check_reach(everywhere, Config(host="0.0.0.0", insecure=True))


def test_an_open_address_without_a_key_ends_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path)]) == 1
    assert "--api-key-file (or --api-key generate)" in capsys.readouterr().err


def test_a_socket_is_private_and_goes_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listening = opened(Config(uds=str(path)))
    assert (mode(path), stat.S_ISSOCK(path.stat().st_mode)) == (0o600, True)
    assert listening.url == f"http+unix://{str(path).replace('/', '%2F')}"
    listening.close()
    assert not path.exists()


def test_a_socket_that_nobody_serves_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listen_unix(str(path)).close()
    assert path.exists()
    with listen_unix(str(path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_that_somebody_serves_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with listen_unix(str(path)), socket.socket(socket.AF_UNIX) as client:
        assert refusal(Config(uds=str(path))) == f"--uds {path} is in use by another program: choose another path"
        client.connect(str(path))


def test_a_file_in_the_socket_s_place_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    assert refusal(Config(uds=str(path))) == f"--uds {path}: something other than a socket is there"
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "why"),
    [("nowhere/s", "cannot be opened: No such file or directory"), ("x" * 110, f"has at most {LONGEST_PATH} bytes")],
)
def test_a_path_that_cannot_be_is_refused(tmp_path: Path, name: str, why: str) -> None:
    assert refusal(Config(uds=str(tmp_path / name))).endswith(why)


def test_another_service_s_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    first = opened(Config(uds=str(path)))
    path.unlink()
    second = opened(Config(uds=str(path)))
    first.close()
    assert path.exists()
    second.close()


def test_keys_come_from_flags_and_a_file_and_once_each(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# two of them\nalpha\n\n  beta \n")
    file.chmod(0o600)
    config, made = keys.settled(Config(api_key=("beta", "gamma"), api_key_file=str(file)))
    assert (config.api_key, made) == (("beta", "gamma", "alpha"), None)


def test_a_key_is_made_where_one_is_asked_for() -> None:
    config, made = keys.settled(Config(api_key=("alpha", "generate")))
    assert made is not None
    assert (config.api_key, len(made), made[:3]) == (("alpha", made), 46, "sk-")


@pytest.mark.parametrize(
    ("text", "why"), [("", "holds no key"), ("# none\n", "holds no key"), ("two words\n", "visible ASCII")]
)
def test_a_file_without_keys_opens_no_door(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(CannotServe, match=why):
        keys.settled(Config(api_key_file=str(file)))


def test_a_key_file_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(CannotServe, match=r"none cannot be read: No such file or directory$"):
        keys.settled(Config(api_key_file=str(tmp_path / "none")))


def test_a_key_file_that_others_may_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("alpha")
    file.chmod(0o644)
    keys.settled(Config(api_key_file=str(file)))
    assert caplog.messages == [f"others may read the API keys in {file}: chmod 600 mends it"]


def test_a_ready_file_of_an_earlier_service_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("{}")
    ReadyFile(str(path)).remove()
    assert not path.exists()


def test_a_ready_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    listening = opened(Config(port=0))
    with pytest.raises(CannotServe, match=r"--ready-file .* cannot be written: No such file or directory"):
        ReadyFile(str(tmp_path / "no" / "ready.json")).write(listening, None)
    listening.close()


def test_a_made_key_that_nobody_would_be_told_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", "--api-key", "generate", "--data-dir", str(tmp_path)]) == 1
    assert "--api-key generate needs --ready-file" in capsys.readouterr().err


def test_a_parent_that_holds_no_pipe_cannot_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(os.devnull).open() as nothing:
        about = os.fstat(nothing.fileno())
    monkeypatch.setattr("os.fstat", lambda _: about)
    monkeypatch.setattr("os.isatty", lambda _: False)
    assert main(["serve", "--port", "0", "--exit-with-parent", "--data-dir", str(tmp_path)]) == 1
    assert "--exit-with-parent needs a pipe as standard input" in capsys.readouterr().err


@pytest.mark.parametrize("names", [(), ("models", "spool", "responses.sqlite3-wal")])
def test_a_data_directory_is_closed_to_others(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    for name in names:
        (folder / name).touch()
    private.make(folder)
    assert mode(folder) == 0o700


def test_a_directory_with_other_things_in_it_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "thesis.txt").touch()
    tmp_path.chmod(0o755)
    private.make(tmp_path)
    assert mode(tmp_path) == 0o755
    assert caplog.messages == [f"others may look into the data directory {tmp_path}, which holds other things too"]
