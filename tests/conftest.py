"""What tests of several rooms share."""

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from strata_cli.text.tokenizer import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>")  # added tokens that are text


def build_byte_tokenizer() -> tokenizers.Tokenizer:
    """Byte-level, one id a byte (so tokens cut characters), a few merges, three special tokens and two tags."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "n")]
    vocab = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    built = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in SPECIAL])
    built.add_tokens([tokenizers.AddedToken(text, special=False) for text in TAGS])
    return built


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    return Tokenizer(build_byte_tokenizer())
