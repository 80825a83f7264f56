"""What tests of several rooms share."""

import os
import signal

import platformdirs
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from strata_cli.text.tokenizer import Tokenizer

# Compiled once for all tests, wherever a test's child has its home.
os.environ.setdefault("STRATA_KERNEL_CACHE", platformdirs.user_cache_dir("strata"))

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>")  # added tokens that are text

# What a parent may have turned off: `nohup`, a job in the background of a script, a supervisor that reaps by itself.
INHERITED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCHLD)


@pytest.fixture(autouse=True, scope="session")
def _no_inherited_signals() -> None:
    """Signals that the tests' parent ignores or blocks do here, and in every child, what they do in a shell.

    A handler of ours takes the place of "ignored": this process stays as deaf as its parent wanted it, but a child does
    not inherit a handler, and a test that sends itself a signal finds it can be caught.
    """
    for number in INHERITED:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INHERITED)


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
