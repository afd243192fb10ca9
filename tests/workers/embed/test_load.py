"""Folders that hold a model for embeddings: language models made for it, and what is wrong with others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import ModelNotConfigured
from tests.conftest import data_dir
from workers.embed import files

QWEN = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 40,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


@pytest.fixture
def folder(fast_blas: Any, tmp_path: Path) -> Path:
    """As Qwen3-Embedding is published: no head, no `model.` before the names, an end that the tokenizer adds."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.qwen3 import Model, ModelArgs
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    mx.random.seed(0)
    network = Model(ModelArgs.from_dict(QWEN))
    pairs: Any = tree_flatten(network.model.parameters())
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(pairs))
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    words = {word: number for number, word in enumerate(("<end>", "<unk>", "a", "bird", "sings", "it", "rains"))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    ending = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 0)])
    tokenizer.post_processor = ending  # type: ignore[assignment]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def load(folder: Path) -> Any:
    from workers.embed.load import load

    return load(str(folder), data_dir=data_dir(), offline=True, report=lambda _: None)


def test_a_language_model_that_was_saved_without_its_head_embeds_by_its_last_token(folder: Path) -> None:
    import mlx.core as mx
    from mlx_lm.models.qwen3 import Model, ModelArgs

    loaded = load(folder)
    assert (loaded.model.kind, loaded.model.embedding_width, loaded.model.context_window) == ("embedding", 32, 64)
    ids = loaded.embedder.tokens.of("a bird sings", "input")
    assert ids.tolist() == [2, 3, 4, 0]
    found = loaded.embedder.network.together([ids, ids[:2]])
    plain = Model(ModelArgs.from_dict(QWEN))
    read: Any = mx.load(str(folder / "model.safetensors"))
    plain.model.load_weights(list(read.items()))
    np.testing.assert_allclose(found[0], np.array(plain.model(mx.array(ids)[None]))[0, -1], atol=1e-4)


def test_the_folder_says_how_tokens_are_pooled_and_how_long_a_text_is(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    loaded = load(folder)
    assert loaded.model.context_window == 8
    assert loaded.embedder.network._pooling == "mean"


def test_a_folder_whose_parts_are_not_known_is_refused(folder: Path) -> None:
    (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]')
    with pytest.raises(ModelNotConfigured, match="Dense"):
        load(folder)


def test_which_folders_are_whole(folder: Path) -> None:
    assert files.is_whole(folder)
    (folder / "model.safetensors").write_bytes(b"cut")
    assert not files.is_whole(folder)


def test_the_service_knows_the_same_encoders() -> None:
    from service.catalog import ENCODERS

    assert set(files.ENCODERS) == ENCODERS
