"""The same engine over other models: the starter quantized by MLX's own quantizer, and large-v3-turbo's shape."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.events import Transcribed
from protocol.jobs import Pcm
from protocol.settings import MediaSettings
from tests.workers.whisper.driver import job, run, sound, text
from workers.media.decode import decode_steps

SAMPLE = Path(__file__).parents[3] / "service" / "sample.flac"
WORDS = ["hello", "from", "starling", "your", "recording", "becomes", "text"]

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture
def sample(tmp_path: Path) -> Pcm:
    target = tmp_path / "sample"
    list(decode_steps(str(SAMPLE), str(target), MediaSettings()))
    return Pcm(str(target), 0, target.stat().st_size // 2)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_base_says_the_words_that_base_says(
    load_starter: Callable[[str], Any], sample: Pcm, tmp_path: Path, bits: int
) -> None:
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize
    from mlx.utils import tree_flatten

    from workers.whisper.load import load
    from workers.whisper.model import choose

    module = load_starter("base")
    quantize(module, group_size=64, bits=bits)
    folder = tmp_path / "quantized"
    folder.mkdir()
    mx.save_safetensors(str(folder / "weights.safetensors"), dict(tree_flatten(module.parameters())))  # type: ignore[arg-type]
    config = {**dataclasses.asdict(module.dims), "quantization": {"group_size": 64, "bits": bits}}
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load(str(folder), data_dir=tmp_path, offline=True, report=lambda _: None, dtype=mx.float32)
    (events,) = run(choose(loaded.whisper), [job(sample, temperature=(0.0,))])
    assert re.findall(r"\w+", text(events).lower()) == WORDS


def test_a_model_of_turbos_width_and_vocabulary_runs_from_sound_to_segments(
    make_module: Callable[..., Any], tmp_path: Path, kernel_dir: Path
) -> None:
    from workers.whisper.model import choose

    model = choose(make_module("large-v3-turbo"), folder=kernel_dir)
    (events,) = run(
        model, [job(sound(tmp_path / "noise", 3.0), temperature=(0.0,), language="zh", without_timestamps=True)]
    )
    assert isinstance(events[-1], Transcribed)
    assert events[-1].language == "zh"
