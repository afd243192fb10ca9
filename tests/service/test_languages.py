"""Languages by whatever people call them."""

from __future__ import annotations

import pytest

from service import languages


def test_there_are_a_hundred() -> None:
    assert len(languages.NAMES) == 100


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("de", "de"),
        ("German", "de"),
        ("GERMAN", "de"),
        (" de ", "de"),
        ("de-AT", "de"),
        ("pt_BR", "pt"),
        ("en_US.UTF-8", "en"),
        ("zh-Hant-TW", "zh"),
        ("yue-HK", "yue"),
        ("haw", "haw"),
        ("Haitian Creole", "ht"),
        ("haitian-creole", "ht"),
        ("mandarin", "zh"),
        ("castilian", "es"),
        ("iw", "he"),
        ("nb-NO", "no"),
        ("jv", "jw"),
    ],
)
def test_a_language_is_known_by_code_name_and_locale(name: str, code: str) -> None:
    assert languages.code(name) == code


@pytest.mark.parametrize("name", ["xx", "klingon", "d", "", "-", "de;AT", "deutsch", "xx-DE", "🇩🇪", "germanic"])
def test_what_is_no_language_is_none(name: str) -> None:
    assert languages.code(name) is None


@pytest.mark.parametrize("name", ["", "auto", "AUTO", "  ", " auto "])
def test_empty_and_auto_detect(name: str) -> None:
    assert languages.detects(name)


def test_every_name_leads_to_its_code() -> None:
    assert {languages.code(name) for name in languages.NAMES.values()} == set(languages.NAMES)
