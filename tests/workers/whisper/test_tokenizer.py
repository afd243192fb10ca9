"""Text and words from tokens, against mlx-whisper's tokenizer where it is whole."""

from __future__ import annotations

import pytest

from workers import blas
from workers.whisper.tokenizer import TextStream, Tokenizer

TOKENIZER = Tokenizer(51865)

TEXTS = {
    "en": ' "Well," she said, (it\'s 5.5% of U.S. trade) -- and so on... Done!',
    "ja": "今日はいい天気ですね。散歩に行きましょう、𠮷野家へ。",
    "zh": "我们去北京，好吗？",  # noqa: RUF001
    "ko": " 안녕하세요, 반갑습니다.",
    "da": " Æblerne er røde på øen; ½ æble.",
    "ru": " Здравствуйте! Как дела?",
}


@pytest.mark.parametrize("language", TEXTS)
def test_words_equal_the_references_and_join_to_the_text(fast_blas: blas.Blas, language: str) -> None:
    from mlx_whisper.tokenizer import get_tokenizer

    theirs = get_tokenizer(True, num_languages=99, language=language, task="transcribe")
    tokens = TOKENIZER.encode(TEXTS[language])
    texts, parts = theirs.split_to_word_tokens([*tokens, theirs.eot])
    found = TOKENIZER.split_words([*tokens, TOKENIZER.eot], language)
    assert [word for word, _ in found] == texts
    assert [list(each) for _, each in found] == [list(each) for each in parts]
    assert "".join(word for word, _ in found[:-1]) == TEXTS[language]


def test_half_a_character_is_no_word_and_no_text() -> None:
    tokens = TOKENIZER.encode(" Hi 𠮷")
    half = tokens[:-1]
    found = TOKENIZER.split_words([*half, TOKENIZER.eot], "en")
    assert "\ufffd" not in "".join(word for word, _ in found)
    assert [token for _, parts in found for token in parts] == [*half, TOKENIZER.eot]


def test_a_character_split_over_two_feeds_appears_once_whole() -> None:
    tokens = TOKENIZER.encode("a𠮷b")
    stream = TextStream(TOKENIZER)
    pieces = [stream.feed([token]) for token in tokens]
    assert "".join(pieces) == "a𠮷b"
    assert not any("\ufffd" in piece for piece in pieces)
    assert TextStream(TOKENIZER).feed(tokens[1:2]) == ""


def test_timestamps_have_no_text() -> None:
    assert TextStream(TOKENIZER).feed([50364, *TOKENIZER.encode(" Hi"), 50400, 50257]) == " Hi"


@pytest.mark.parametrize(("n_vocab", "languages"), [(51864, 99), (51865, 99), (51866, 100)])
def test_tokens_and_specials_are_the_references(fast_blas: blas.Blas, n_vocab: int, languages: int) -> None:
    from mlx_whisper.tokenizer import get_tokenizer

    theirs = get_tokenizer(n_vocab > 51864, num_languages=languages, language="en", task="transcribe")
    ours = Tokenizer(n_vocab)
    assert (ours.eot, ours.sot, ours.sot_prev, ours.no_speech, ours.no_timestamps, ours.timestamp_begin) == (
        theirs.eot,
        theirs.sot,
        theirs.sot_prev,
        theirs.no_speech,
        theirs.no_timestamps,
        theirs.timestamp_begin,
    )
    assert set(theirs.non_speech_tokens) < set(ours.unspoken)
    text = "Grüße, <|endoftext|> 今日は 5,50 €\n\n  <|notimestamps|>x"
    assert ours.encode(text) == theirs.encoding.encode(text, disallowed_special=())
    said = [ours.sot, ours.no_timestamps, *ours.encode(text)[:9], ours.eot, ours.timestamp_begin + 5]
    assert ours.decode(said) == theirs.decode(said)
    assert ours.decode(ours.encode("𠮷")[:2]) == theirs.decode(ours.encode("𠮷")[:2])
