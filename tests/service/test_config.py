"""Settings: precedence, conversion and what is refused. Knows no service."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from service.config import Config, ConfigError, add_flags, load, settings


def refusal(file: Path | None = None, environ: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, flags)
    return str(caught.value)


def toml(folder: Path, text: str) -> Path:
    path = folder / "starling.toml"
    path.write_text(text)
    return path


def test_nothing_given_means_the_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    config = load(None, {}, {})
    assert (config.host, config.port, config.whisper_model) == ("127.0.0.1", 8080, ("whisper-base",))
    assert config.data_dir == str(tmp_path / "starling")


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = toml(tmp_path, "port = 1\nwhisper_workers = 2\nmedia_workers = 3\n")
    environ = {"STARLING_PORT": "10", "STARLING_WHISPER_WORKERS": "20"}
    config = load(file, environ, {"port": "40"})
    assert (config.port, config.whisper_workers, config.media_workers, config.queue_limit) == (40, 20, 3, 64)


def test_a_file_has_types_of_its_own(tmp_path: Path) -> None:
    file = toml(tmp_path, 'offline = true\nmax_upload_bytes = "1 GiB"\nstart_wait = 5\n')
    config = load(file, {}, {})
    assert (config.offline, config.max_upload_bytes, config.start_wait) == (True, 1 << 30, 5.0)


@pytest.mark.parametrize("text", ["true", "TRUE", "1", "yes", "On"])
def test_a_switch_is_turned_on_by_any_usual_word(text: str) -> None:
    assert load(None, {"STARLING_OFFLINE": text}, {}).offline is True


@pytest.mark.parametrize("text", ["false", "0", "no", "OFF"])
def test_a_switch_is_turned_off_by_any_usual_word(tmp_path: Path, text: str) -> None:
    assert load(toml(tmp_path, "offline = true"), {"STARLING_OFFLINE": text}, {}).offline is False


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("200MiB", 209715200), ("2 gib", 2147483648)])
def test_sizes_may_have_a_unit(text: str, size: int) -> None:
    assert load(None, {"STARLING_MAX_UPLOAD_BYTES": text}, {}).max_upload_bytes == size


def test_an_empty_variable_is_no_value() -> None:
    assert load(None, {"STARLING_PORT": ""}, {}).port == 8080


def test_an_empty_key_is_refused_and_hides_no_other() -> None:
    """As of a script whose variable is not set."""
    message = "--api-key: expected a key, not an empty text"
    assert message in refusal(environ={"STARLING_API_KEY": "secret"}, api_key=[""])
    assert message in refusal(api_key=["", " "])


def test_a_folder_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(None, {}, {"data_dir": "here"}).data_dir == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"STARLING_PORT": "many"}, "STARLING_PORT: expected a whole number from 0 to 65535, not 'many'"),
        ({"STARLING_PORT": "99999"}, "STARLING_PORT: expected a whole number from 0 to 65535, not '99999'"),
        ({"STARLING_OFFLINE": "maybe"}, "STARLING_OFFLINE: expected true or false, not 'maybe'"),
        ({"STARLING_GRACE": "inf"}, "STARLING_GRACE: expected a number, at least 0, not 'inf'"),
        ({"STARLING_GRACE": "nan"}, "STARLING_GRACE: expected a number, at least 0, not 'nan'"),
        ({"STARLING_START_WAIT": "nan"}, "STARLING_START_WAIT: expected a number greater than 0, not 'nan'"),
        ({"STARLING_START_WAIT": "0"}, "STARLING_START_WAIT: expected a number greater than 0, not '0'"),
        (
            {"STARLING_MAX_JSON_BYTES": "1 GB"},
            "STARLING_MAX_JSON_BYTES: expected a number of bytes, at least 1, plain or with KiB, MiB or GiB, "
            "not '1 GB'",
        ),
        (
            {"STARLING_MEDIA_MEMORY_BYTES": "1KiB"},
            "STARLING_MEDIA_MEMORY_BYTES: expected a number of bytes, at least 64MiB, plain or with KiB, MiB or GiB, "
            "not '1KiB'",
        ),
        ({"STARLING_LOG_LEVEL": "loud"}, "STARLING_LOG_LEVEL: expected debug, info, warning, error, not 'loud'"),
        ({"STARLING_PROT": "1"}, "STARLING_PROT: unknown setting; did you mean STARLING_PORT?"),
        (
            {"STARLING_WHISPER_MODEL": "caf\udce9"},
            "whisper_model: expected UTF-8 text, not 'caf\\udce9'",
        ),
        ({"STARLING_XYZZY": "1"}, "STARLING_XYZZY: unknown setting"),
    ],
)
def test_a_bad_variable_is_refused_by_name(environ: dict[str, str], message: str) -> None:
    assert refusal(environ=environ) == message


def test_a_bad_flag_is_refused_by_name() -> None:
    assert refusal(whisper_workers="0") == "--whisper-workers: expected a whole number from 1 to 64, not '0'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = '8080'", "port: expected a whole number from 0 to 65535, not '8080'"),
        ("port = true", "port: expected a whole number from 0 to 65535, not True"),
        ("[server]\nport = 1", "server: unknown setting"),
        ("max-upload-bytes = 1", "max-upload-bytes: unknown setting; did you mean max_upload_bytes?"),
        ("port = ", "not TOML: Invalid value (at end of document)"),
    ],
)
def test_a_bad_line_of_the_file_is_refused_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = toml(tmp_path, text)
    assert refusal(file).startswith(f"{file}: {message}")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.toml") == f"{tmp_path / 'none.toml'}: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "cors_origin",
            (
                "*",
                "null",
                "https://app.example",
                "http://LOCALHOST:3000/",
                "tauri://localhost",
                "http://[::1]:1",
                "file://",
            ),
            ("app.example", "https://app.example/page", "https://*.example", "https://a@b", "https://a:port", ":80"),
        ),
        (
            "allowed_host",
            ("*", "studio", "Mac.local", "10.0.0.2", "fd00::1", "[fd00::1]", "host.docker.internal"),
            ("studio:8080", "http://studio", "studio/x", "*.local", "[studio]"),
        ),
    ],
)
def test_a_name_that_no_browser_sends_is_refused(name: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    """It would let nobody in, and nothing would say why."""
    assert getattr(load(None, {}, {name: list(good)}), name) == good
    for each in bad:
        said = refusal(**{name: [each]})
        assert " without " in said and said.endswith(f", or *, not {[each]!r}")


def test_a_flag_that_is_empty_means_no_language_model() -> None:
    assert load(None, {}, {}).llm_model == ("smollm2-135m-instruct",)
    assert load(None, {}, {"llm_model": [""]}).llm_model == ()


def test_there_may_be_several_models_and_the_first_is_the_default(tmp_path: Path) -> None:
    flags = {"whisper_model": ["a/large", "a/small"]}
    assert load(None, {}, flags).whisper_model == ("a/large", "a/small")
    assert load(None, {"STARLING_LLM_MODEL": "a/x, a/y,"}, {}).llm_model == ("a/x", "a/y")
    file = toml(tmp_path, 'whisper_model = ["a/x", "a/y"]\nllm_model = "folder, with a comma"')
    config = load(file, {}, {})
    assert (config.whisper_model, config.llm_model) == (("a/x", "a/y"), ("folder, with a comma",))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"whisper_model": [""]}, "--whisper-model: expected at least one text, not ['']"),
        ({"whisper_model": ["/a/m", "/b/m"]}, "'/a/m' and '/b/m' would both be called 'm'; rename a folder"),
        ({"whisper_model": ["/a/m"], "llm_model": ["/b/m"]}, "'/a/m' and '/b/m' would both be called 'm'"),
        ({"model_alias": ["gpt-4o"]}, "expected NAME=MODEL, the name of at most 200 characters, not 'gpt-4o'"),
        ({"model_alias": ["=whisper-base"]}, "expected NAME=MODEL"),
        (
            {"model_alias": ["gpt-4o=qwen"]},
            "'gpt-4o=qwen' names none of the configured models, which are whisper-base, smollm2-135m-instruct",
        ),
        ({"model_alias": ["a=whisper-base", "a=smollm2-135m-instruct"]}, "'a' is given to two models"),
        ({"model_alias": ["whisper-base=smollm2-135m-instruct"]}, "'whisper-base' is the name of another model"),
    ],
)
def test_a_name_that_could_mean_two_models_or_none_is_refused(flags: dict[str, object], message: str) -> None:
    assert message in refusal(**flags)


def test_a_list_in_the_file_holds_texts_alone(tmp_path: Path) -> None:
    assert refusal(toml(tmp_path, "llm_model = [1]")).endswith("llm_model: expected a text or several, not [1]")


def test_every_setting_has_a_flag_and_a_description() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    assert vars(parser.parse_args([])) == {}
    assert vars(parser.parse_args(["--no-offline", "--port", "0"])) == {"offline": False, "port": "0"}
    for setting in settings().values():
        assert f"{setting.flag}" in parser.format_help()
        assert setting.description


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().port = 1  # type: ignore[misc]


def test_a_model_of_both_kinds_is_refused() -> None:
    with pytest.raises(ConfigError, match="'smol' is an llm_model too"):
        load(None, {}, {"llm_model": ["smol"], "embedding_model": ["smol"]})
