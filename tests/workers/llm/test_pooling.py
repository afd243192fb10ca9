"""What sentence-transformers' files say of a model's vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ModelNotConfigured
from workers.llm.pooling import Described, choose, describe

MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
]


def put(folder: Path, pooling: Any = None, modules: Any = MODULES, longest: Any = None) -> Path:
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if longest is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))
    return folder


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_the_way_of_pooling_is_read(tmp_path: Path, pooling: Any, expected: str) -> None:
    assert describe(put(tmp_path, pooling), "m").pooling == expected


def test_without_such_files_nothing_is_said(tmp_path: Path) -> None:
    assert describe(tmp_path, "m") == Described(None, None)


def test_the_longest_text_is_read(tmp_path: Path) -> None:
    assert describe(put(tmp_path, longest=256), "m").longest == 256


@pytest.mark.parametrize(
    ("pooling", "modules", "told"),
    [
        ({"pooling_mode_max_tokens": True}, MODULES, "max_tokens"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, MODULES, "mean_tokens and cls_token"),
        (None, [*MODULES, {"type": "sentence_transformers.models.Dense", "path": "3_Dense"}], "Dense"),
        (None, "no list", "cannot be read"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, pooling: Any, modules: Any, told: str) -> None:
    with pytest.raises(ModelNotConfigured, match=told):
        describe(put(tmp_path, pooling, modules), "m")


def test_a_path_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    put(tmp_path, modules=[{"type": "x.Pooling", "path": "../elsewhere"}])
    with pytest.raises(ModelNotConfigured):
        describe(tmp_path, "m")


def test_its_files_are_fetched_with_the_weights() -> None:
    names = [
        "modules.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
        "onnx/model.onnx",
        "2_Dense/config.json",
    ]
    assert choose(names) == {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"}
