"""Reading of tokenizer files, which others may have written.

A tokenizer of the ``tokenizers`` library may split text with any regular expression, some of which never end, and
replace or pad text with any amount of other text. Files are therefore read only if they differ from the tokenizers of
:func:`~rltok_rl.agents.segmenters.train_bpe` and :func:`~rltok_rl.agents.segmenters.train_unigram` in tokens and merges
alone, unless the user trusts them.
"""

from __future__ import annotations

import json
from typing import Any

from rltok_rl.agents.segmenters.tokenizers import TokenizerSplit, tokenizers_library, untrained_bpe, untrained_unigram


def read_tokenizer(
    text: str, kind: type[TokenizerSplit] = TokenizerSplit, where: str = "tokenizer", *, trust_code: bool = False
) -> TokenizerSplit:
    """Read a tokenizer from the JSON of the ``tokenizers`` library, as a ``kind`` of split; errors name ``where``.

    With ``trust_code`` it may split text in any way.
    """
    library = tokenizers_library()
    try:
        known = trust_code or _is_known(json.loads(text))
        split = kind(library.Tokenizer.from_str(text)) if known else None
    except Exception as error:  # the library raises no other type
        raise ValueError(f"{where} must be a tokenizer as the tokenizers library writes it: {error}") from None
    if split is None:
        raise ValueError(
            f"{where} must split text as a tokenizer of train_bpe or train_unigram, got another one, whose regular "
            f"expressions may never end; pass --trust-code (in Python, trust_code=True) if you trust it"
        )
    return split


def _is_known(content: dict[str, Any]) -> bool:
    """Whether a tokenizer differs from an untrained one in its tokens and merges alone, and has all bytes."""
    vocabulary = content["model"]["vocab"]
    pieces = {*vocabulary} if isinstance(vocabulary, dict) else {piece for piece, _ in vocabulary}
    if isinstance(vocabulary, dict) and len({*vocabulary.values()}) < len(vocabulary):
        raise ValueError("its vocabulary must have different ids, got equal ones")
    if missing := {*tokenizers_library().pre_tokenizers.ByteLevel.alphabet()} - pieces:
        raise ValueError(f"its vocabulary must hold all 256 bytes, got {len(missing)} fewer")
    known = [json.loads(t.to_str()) for t in (untrained_bpe("gpt2"), untrained_bpe("spaces"), untrained_unigram())]
    return any(_fixed(content, form) == _fixed(form, form) for form in known)


def _fixed(content: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the content without what is learned or not used; earlier versions of the library wrote fewer fields."""
    model = {**known["model"], **content["model"], "vocab": None, "merges": None}
    return {**known, **content, "model": model, "decoder": None}
