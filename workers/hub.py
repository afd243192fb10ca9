"""Models of the Hugging Face hub, of both kinds: those in its local cache, and the download of others.

Knows huggingface-hub and the words for its failures; imports no mlx itself. Also `python -m workers.hub get ID | list`.
"""

from __future__ import annotations

import argparse
import errno
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from protocol.errors import Failure, ModelNotConfigured
from protocol.events import Loading, ModelKind
from workers.embed import files as embed_files
from workers.llm import files as llm_files
from workers.starter import catalog
from workers.whisper import files

Report = Callable[[Loading], None]

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REPORT_SECONDS = 0.25


class Entry(msgspec.Struct, frozen=True):
    """One line of `list`."""

    id: str
    source: Literal["starter", "hub"]
    kind: ModelKind
    size_bytes: int
    path: str
    ready: bool
    """Whether it loads without a network and without a conversion."""


def is_id(model: str) -> bool:
    """Whether `model` has the form owner/name."""
    return _ID.fullmatch(model) is not None


def find(model: str, kind: ModelKind, *, offline: bool, report: Report) -> Path:
    """The model's folder in the hub's cache; downloaded when it is not whole there. Raises ModelNotConfigured."""
    return cached(model, kind) or download(model, kind, offline=offline, report=report)


def cached(model: str, kind: ModelKind) -> Path | None:
    """The newest snapshot that is complete; never asks the network."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, files.CONFIG)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if _is_whole(folder, kind) else None


def _is_whole(folder: Path, kind: ModelKind) -> bool:
    match kind:
        case "whisper":
            return files.is_whisper(folder)
        case "llm":
            return llm_files.is_llm(folder)
        case "embedding":
            return embed_files.is_whole(folder)


def _kind(config: dict[str, Any]) -> ModelKind:
    """Language models may be made for embeddings too; that is not told by their configuration."""
    if config.get("model_type", "whisper") == "whisper":
        return "whisper"
    return "embedding" if embed_files.is_encoder(config) else "llm"


def _check(config: dict[str, Any], kind: ModelKind, name: str) -> None:
    """Raises ModelNotConfigured when a configuration is of no model of this kind."""
    match kind:
        case "whisper":
            files.dimensions(config, name)
        case "llm":
            llm_files.check(config, name)
        case "embedding":
            embed_files.check(config, name)


def download(model: str, kind: ModelKind | None, *, offline: bool, report: Report) -> Path:
    """Fetch what is missing or newer, of whatever kind it is if `kind` is None. Raises ModelNotConfigured.

    A transfer that breaks off goes on from where it stopped; after a restart only whole files are kept. Of several
    weight files it fetches one layout, and never what has to be unpickled.
    """
    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    if offline or constants.HF_HUB_OFFLINE:
        raise ModelNotConfigured(
            f"{model} is not on this machine and the hub is off limits (offline): run `starling get {model}` online"
        )
    report(Loading(f"looking for {model} on the Hugging Face hub"))
    # The client's HTTP library raises its own errors too; it has been three different libraries so far.
    transport_error: Any = HfHubHTTPError.__bases__[0]
    try:
        there = [file.rfilename for file in HfApi().model_info(model).siblings or ()]
        names: tuple[str, ...] = ()
        # Not even the configuration of what has no weights to read, or the list would name it.
        if files.CONFIG in there and max(len(files.choose(there)), len(llm_files.choose(there))) > 1:
            config = msgspec.json.decode(Path(hf_hub_download(model, files.CONFIG)).read_bytes(), type=dict[str, Any])
            kind = kind or _kind(config)
            _check(config, kind, model)
            names = files.choose(there) if kind == "whisper" else llm_files.choose(there)
        if files.CONFIG not in names or len(names) == 1:
            layouts = "safetensors or npz" if kind in ("whisper", None) else "safetensors"
            raise ModelNotConfigured(f"{model} has no {files.CONFIG} and {layouts} weights that could be read")
        return Path(snapshot_download(model, allow_patterns=list(names), tqdm_class=_bar(model, report)))
    except msgspec.DecodeError as error:
        raise ModelNotConfigured(f"{model}: {files.CONFIG} is no JSON object") from error
    except (transport_error, OSError) as error:
        _explain(model, error)


def _explain(model: str, error: BaseException) -> NoReturn:
    """Say in a person's words why there was no download."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    status = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
    get = f"`starling get {model}`"
    if isinstance(error, GatedRepoError) or status == 403:
        message = f"{model} is gated: accept its terms on the hub, set HF_TOKEN to a token of yours and run {get}"
    elif isinstance(error, RepositoryNotFoundError) or status in (401, 404):
        message = f"the Hugging Face hub has no model {model}, or it is private: then set HF_TOKEN and run {get}"
    elif status:
        message = f"the Hugging Face hub answered {status} for {model}; try {get} later"
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        message = f"{model} cannot be stored: {error.strerror}"
    else:
        message = (
            f"{model} is not whole on this machine and the Hugging Face hub cannot be reached; "
            f"with a network, {get} fetches the rest of it"
        )
    raise ModelNotConfigured(message) from error


def _bar(model: str, report: Report) -> type[Any]:
    """A progress bar class that reports bytes instead of drawing. The hub's client makes several of each download."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    bars: list[Any] = []
    last = 0.0

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})
            self.n = options.get("initial") or 0
            self.total = options.get("total")
            if options.get("unit") == "B":
                bars.append(self)

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal last
            self.n += n or 0
            done, total = (int(max((count or 0 for count in counts), default=0)) for counts in _counts(bars))
            now = time.monotonic()
            if self in bars and (now - last > _REPORT_SECONDS or done >= total):
                last = now
                report(Loading(f"downloading {model}", done, max(done, total)))
            return None

    return Bar


def _counts(bars: list[Any]) -> tuple[list[float], list[float | None]]:
    return [bar.n for bar in bars], [bar.total for bar in bars]


def models(data_dir: str | Path) -> Iterator[Entry]:
    """The starters, then the models in the hub's cache by id."""
    for name, starter in catalog.STARTERS.items():
        folder = catalog.folder(name, data_dir)
        size = sum(file.stat().st_size for file in folder.iterdir()) if folder.is_dir() else 0
        yield Entry(name, "starter", starter.kind, size, str(folder), catalog.converted(name, data_dir))
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda each: each.repo_id):
        newest = max(repository.revisions, key=lambda each: ("main" in each.refs, each.last_modified), default=None)
        kind = _kind_of(newest.snapshot_path) if repository.repo_type == "model" and newest is not None else None
        if newest is None or kind is None:
            continue
        ready = _is_whole(newest.snapshot_path, kind)
        yield Entry(repository.repo_id, "hub", kind, repository.size_on_disk, str(newest.snapshot_path), ready)


def _kind_of(folder: Path) -> ModelKind | None:
    """What a folder's configuration names; None where it is of neither kind."""
    try:
        config = msgspec.json.decode((folder / files.CONFIG).read_bytes(), type=dict[str, Any])
        kind = _kind(config)
        _check(config, kind, folder.name)
    except (OSError, msgspec.DecodeError, ModelNotConfigured):
        return None
    return kind


def get(model: str, data_dir: str, *, offline: bool, report: Report) -> Path:
    """Have `model` ready before it is needed: convert a starter, or fetch what the hub has newer."""
    if model in catalog.STARTERS:
        return catalog.prepare(model, data_dir, report)
    if not is_id(model):
        raise ModelNotConfigured(f"{model!r} is no Hugging Face id (owner/name) and no starter")
    return download(model, None, offline=offline, report=report)


def main(arguments: list[str] | None = None) -> int:
    """0, or 1 with a sentence on stderr."""
    parser = argparse.ArgumentParser(prog="python -m workers.hub", description="models on this machine")
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("get", help="download a model, or convert a starter; the folder goes to stdout")
    fetch.add_argument("id")
    fetch.add_argument("--offline", action="store_true")
    listing = commands.add_parser("list", help="one JSON object for each model")
    for command in (fetch, listing):
        command.add_argument("--data-dir", required=True)
    wanted = parser.parse_args(arguments)
    if wanted.command == "list":
        for entry in models(wanted.data_dir):
            sys.stdout.buffer.write(msgspec.json.encode(entry) + b"\n")
        return 0
    try:
        folder = get(wanted.id, wanted.data_dir, offline=wanted.offline, report=_draw)
    except Failure as failure:
        sys.stderr.write(f"{failure.message}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


def _draw(loading: Loading) -> None:
    """On a terminal one line that is drawn again; elsewhere a line for each report."""
    text = loading.message
    if loading.total:
        share = loading.done / loading.total
        text += f" [{'#' * int(30 * share):30}] {share:4.0%} of {loading.total / 1e6:.0f} MB"
    if not sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
        return
    end = "\n" if not loading.total or loading.done >= loading.total else ""
    sys.stderr.write(f"\r\x1b[K{text}{end}")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
