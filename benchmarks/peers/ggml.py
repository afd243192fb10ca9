"""Writes a Whisper model as whisper.cpp reads it: float16 tensors under OpenAI's names in a "ggml" file.

Source: whisper.cpp, models/convert-pt-to-ggml.py and whisper_model_load in src/whisper.cpp.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

MAGIC = 0x67676D6C
FLOAT32, FLOAT16 = 0, 1


def write(whisper: Any, path: Path) -> None:
    """`whisper`: a loaded mlx_whisper.whisper.Whisper with float weights."""
    import mlx_whisper

    dims = whisper.dims
    assets = Path(mlx_whisper.__file__).parent / "assets"
    filters = np.load(assets / "mel_filters.npz")[f"mel_{dims.n_mels}"].astype("<f4")
    vocabulary = "multilingual" if whisper.is_multilingual else "gpt2"
    tokens = [
        base64.b64decode(line.split()[0]) for line in (assets / f"{vocabulary}.tiktoken").read_text().splitlines()
    ]
    with path.open("wb") as file:
        file.write(
            struct.pack(
                "<12i",
                *(MAGIC, dims.n_vocab, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer),
                *(dims.n_text_ctx, dims.n_text_state, dims.n_text_head, dims.n_text_layer, dims.n_mels, FLOAT16),
            )
        )
        file.write(struct.pack("<2i", *filters.shape) + filters.tobytes())
        file.write(struct.pack("<i", len(tokens)))
        for token in tokens:
            file.write(struct.pack("<i", len(token)) + token)
        for name, array in _tensors(whisper):
            _write_tensor(file, name, array)


def _tensors(whisper: Any) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    from mlx.utils import tree_flatten

    yield "encoder.positional_embedding", np.array(whisper.encoder._positional_embedding, np.float32)
    pairs: Any = tree_flatten(whisper.parameters())
    for name, value in pairs:
        if name == "alignment_heads" or name.rpartition(".")[2].startswith("_"):
            continue
        array = np.array(value, np.float32)
        if name.startswith("encoder.conv"):
            # MLX keeps (out, width, in); ggml wants PyTorch's (out, in, width), and a bias that is a column.
            array = array.transpose(0, 2, 1) if array.ndim == 3 else array[:, None]
        yield name.replace("mlp1", "mlp.0").replace("mlp2", "mlp.2"), array


def _write_tensor(file: BinaryIO, name: str, array: npt.NDArray[np.float32]) -> None:
    whole = array.ndim < 2 or name.endswith(("positional_embedding", "conv1.bias", "conv2.bias"))
    encoded = name.encode()
    file.write(struct.pack("<3i", array.ndim, len(encoded), FLOAT32 if whole else FLOAT16))
    file.write(struct.pack(f"<{array.ndim}i", *reversed(array.shape)) + encoded)
    file.write(np.ascontiguousarray(array, "<f4" if whole else "<f2").tobytes())
