"""Small tokenizers of the kinds that language models come with, wrapped as mlx-lm wraps them.

Needs the fixture fast_blas before it: mlx-lm imports mlx.
"""

from __future__ import annotations

import json
from typing import Any

THINK = ("<think>", "</think>")


def byte_level(*more: str, added: tuple[str, ...] = THINK, template: str | None = None, bos: bool = False) -> Any:
    """A token for each byte and for each of `more`, as GPT-2's descendants have it: token 65 is "A"."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    letters = _letters()
    names = letters + ["".join(letters[byte] for byte in word.encode()) for word in more]
    tokenizer = Tokenizer(models.BPE(vocab={name: place for place, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.add_tokens([AddedToken(each, special=False) for each in added])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return wrapped(tokenizer, template)


def _letters() -> list[str]:
    """GPT-2's letter for each byte."""
    from tokenizers import pre_tokenizers

    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    found = [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]
    assert sorted(found) == sorted(pre_tokenizers.ByteLevel.alphabet())
    return found


def sentence_piece(*words: str, strip: bool = True, template: str | None = None) -> Any:
    """A token for each byte, then each of `words`, a space written as SentencePiece writes it."""
    from tokenizers import AddedToken, Tokenizer, models

    names = [f"<0x{byte:02X}>" for byte in range(256)] + [word.replace(" ", "\u2581") for word in words]
    vocab = {name: place for place, name in enumerate([*names, "<unk>"])}
    plain = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    plain.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    described = json.loads(plain.to_str())
    space = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    steps: list[dict[str, Any]] = [space, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if strip:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    described["decoder"] = {"type": "Sequence", "decoders": steps}
    return wrapped(Tokenizer.from_str(json.dumps(described)), template)


def word_pieces() -> Any:
    """A decoder of which only the whole is known: " ##ing" joins the word before it."""
    from tokenizers import Tokenizer, decoders, models

    vocab = {"[UNK]": 0, "go": 1, "##ing": 2, "home": 3, "\ufffd": 4}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return wrapped(tokenizer, None)


def wrapped(tokenizer: Any, template: str | None) -> Any:
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from transformers import PreTrainedTokenizerFast

    known = {name: name for name in ("<s>", "</s>") if tokenizer.token_to_id(name) is not None}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=known.get("<s>"),
        eos_token=known.get("</s>"),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return TokenizerWrapper(fast)
