"""Text and token ids: no character is ever cut, special tokens are no text, tags are."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from strata_cli.errors import UsageError
from strata_cli.text.tokenizer import Tokenizer
from tests.conftest import build_byte_tokenizer

BYTES = Tokenizer(build_byte_tokenizer())


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(i) for i in ids), stream.flush()]


@given(st.text())
def test_text_comes_back_and_no_piece_cuts_a_character(text):
    ids = BYTES.encode(text)
    out = pieces(BYTES, ids)
    assert "".join(out) == BYTES.decode(ids)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(out)


@given(st.lists(st.integers(0, BYTES.size - 1), max_size=40))
def test_any_ids_give_what_decoding_all_at_once_gives(ids):
    assert "".join(pieces(BYTES, ids)) == BYTES.decode(ids)


def test_a_character_waits_for_its_last_byte():
    ids = BYTES.encode("aé🙂b")
    assert pieces(BYTES, ids) == ["a", "", "é", "", "", "", "🙂", "b", ""]


def test_what_never_becomes_a_character_is_said_at_the_end():
    assert pieces(BYTES, BYTES.encode("🙂")[:3]) == ["", "", "", "\ufffd"]


def test_special_tokens_are_no_text_but_tags_are():
    ids = BYTES.encode("<|im_start|>x<think>y</think><|im_end|>")
    assert len(ids) == 6
    assert BYTES.decode(ids) == "".join(pieces(BYTES, ids)) == "x<think>y</think>"
    assert BYTES.decode(ids, skip_special=False) == "<|im_start|>x<think>y</think><|im_end|>"
    assert BYTES.special_id("<|im_end|>") == ids[-1]
    assert BYTES.special_id("<think>") is None
    assert BYTES.special_id("x") is None


def test_hidden_ids_give_no_text():
    ids = BYTES.encode("a</think>b")
    stream = BYTES.stream(hidden=[ids[1]])
    assert [stream.push(i) for i in ids] == ["a", "", "b"]


def test_spaces_between_words_survive_a_decoder_that_strips_the_first():
    built = tokenizers.Tokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "[UNK]": 2}, unk_token="[UNK]"))
    built.decoder = decoders.Metaspace()
    assert "".join(pieces(Tokenizer(built), [0, 1, 0])) == "one two one"


def test_nothing_is_added_to_a_prompt():
    assert BYTES.decode(BYTES.encode("abc"), skip_special=False) == "abc"


def test_missing_and_broken_files(tmp_path):
    assert Tokenizer.load(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
