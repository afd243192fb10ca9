"""The command line: reads arguments and settings, and runs one command of service/cli.

Imports each command late: `serve` listens before the others' libraries would be there.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import os
import sys
from collections.abc import Sequence

from service.config import CONFIG_VARIABLE, Config, ConfigError, add_flags, load, settings

FORMATS = ("text", "json", "srt", "vtt", "verbose_json")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 when the command failed, 2 for a wrong flag or setting."""
    _print_anything()
    arguments = _parser().parse_args(argv)
    flags = {name: value for name, value in vars(arguments).items() if name in settings()}
    try:
        config = load(arguments.config or os.environ.get(CONFIG_VARIABLE) or None, os.environ, flags)
    except ConfigError as error:
        print(f"starling: {error}", file=sys.stderr)
        return 2
    try:
        return _run(arguments, config)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`starling … | head`). Python would complain again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _print_anything() -> None:
    """What the terminal's encoding lacks is escaped: a file's name is no reason to end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: argparse.Namespace, config: Config) -> int:
    match arguments.command:
        case "serve":
            from service.cli import serve

            return serve.run(config)
        case "transcribe":
            from service.cli import transcribe

            wanted = transcribe.Wanted(
                format=arguments.format,
                language=arguments.language,
                translate=arguments.translate,
                prompt=arguments.prompt,
                model=arguments.model,
            )
            return transcribe.run(arguments.files, wanted, arguments.output, arguments.url, config)
        case "get":
            from service.cli import models

            return models.get(arguments.id, config)
        case "models":
            from service.cli import models

            return models.show(config, as_json=arguments.json)
        case _:
            from service.cli import doctor

            return doctor.run(config, as_json=arguments.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="starling", description="A local speech server on MLX.")
    version = importlib.metadata.version("starling")
    parser.add_argument("--version", action="version", version=f"starling {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _configurable(commands.add_parser("serve", help="answer HTTP requests until it is stopped"))
    _transcribe(commands.add_parser("transcribe", help="turn recordings into text, through a service"))
    get = commands.add_parser("get", help="download or convert a model ahead of time")
    get.add_argument("id", help="a Hugging Face id (owner/name) or a starter's name")
    _configurable(get, ("data_dir", "offline"))
    models = commands.add_parser("models", help="list the models on this machine")
    models.add_argument("--json", action="store_true", help="one JSON object a line")
    _configurable(models, ("data_dir",))
    doctor = commands.add_parser("doctor", help="say what was found here, and what to do about each gap")
    doctor.add_argument("--json", action="store_true", help="a JSON array")
    kinds = ("whisper_model", "llm_model", "embedding_model", "model_alias")
    _configurable(doctor, ("host", "port", "uds", "data_dir", *kinds, "offline"))
    return parser


def _configurable(parser: argparse.ArgumentParser, names: Sequence[str] = ()) -> None:
    parser.add_argument("--config", metavar="FILE", help=f"a TOML file of settings (also {CONFIG_VARIABLE})")
    add_flags(parser, names)


def _transcribe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="any audio or video file")
    parser.add_argument("--format", choices=FORMATS, default="text", help="of the result (text)")
    parser.add_argument("-o", "--output", metavar="DIR", help="write a file for each recording there, not to stdout")
    parser.add_argument("--language", help="spoken language, as code or English name (detected)")
    parser.add_argument("--translate", action="store_true", help="into English")
    parser.add_argument("--prompt", help="text that was said before, or names to expect")
    parser.add_argument("--model", help="the model's name for the service (its default)")
    parser.add_argument("--url", help="a running service (the one on --host and --port, else one is started)")
    reached = ("host", "port", "api_key", "api_key_file")
    _configurable(parser, (*reached, "data_dir", "whisper_model", "model_alias", "offline"))


if __name__ == "__main__":
    sys.exit(main())
