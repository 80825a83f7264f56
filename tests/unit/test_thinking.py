"""Thinking is told from the answer in any chunking. Expected values are written by hand or by a regular expression."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.text.thinking import ThinkingSplitter, opens_thinking, split_thinking


@pytest.mark.parametrize(
    ("opened", "reply", "reasoning", "answer"),
    [
        (False, "plain", "", "plain"),
        (False, "\n plain", "", "\n plain"),
        (False, "<think>\na\nb\n</think>\n\nyes", "a\nb", "yes"),
        (False, "\n<think>a</think>yes", "a", "yes"),
        (True, "a\n</think>\n\nyes\n", "a", "yes\n"),
        (True, "never closed\n", "never closed", ""),
        (True, "cut </thi", "cut </thi", ""),
        (True, "a < b </ c</think>d", "a < b </ c", "d"),
        (False, "say <think> later</think>", "", "say <think> later</think>"),
        (False, "<thi", "", "<thi"),
        (False, "<think></think>\n\nx</think>", "", "x</think>"),
        (False, "", "", ""),
    ],
)
def test_whole_replies(opened, reply, reasoning, answer):
    assert split_thinking(reply, opened) == (reasoning, answer)


reply_text = st.lists(st.sampled_from(["<think>", "</think>", "</", "<", "think>", "\n", "a", " b", "é"]), max_size=12)


@given(reply_text, st.booleans(), st.lists(st.integers(1, 4), min_size=1, max_size=40))
def test_any_chunking_gives_the_same_split(parts, opened, sizes):
    text = "".join(parts)
    splitter, pieces, at = ThinkingSplitter(opened), [], 0
    for i in range(len(text) + 1):
        size = sizes[i % len(sizes)]
        pieces += splitter.feed(text[at : at + size])
        at += size
    pieces += splitter.finish()
    assert (splitter.reasoning, splitter.answer) == split_thinking(text, opened)
    assert "".join(p.text for p in pieces if p.thinking) == splitter.reasoning
    assert "".join(p.text for p in pieces if not p.thinking) == splitter.answer


@given(reply_text, st.booleans())
def test_equals_a_regular_expression(parts, opened):
    text = "".join(parts)
    whole = ("<think>" if opened else "") + text
    match = re.fullmatch(r"\s*<think>(.*?)(?:</think>(.*))?", whole, re.DOTALL)
    expected = (match[1].strip("\n"), (match[2] or "").lstrip("\n")) if match else ("", text)
    assert split_thinking(text, opened) == expected


def test_text_is_released_as_soon_as_it_is_safe():
    splitter = ThinkingSplitter(opened=True)
    assert [p.text for p in splitter.feed("one two <")] == ["one two "]
    assert [p.text for p in splitter.feed("3\n")] == ["<3"]
    assert [(p.text, p.thinking) for p in splitter.feed("</think>\n\nyes")] == [("yes", False)]


def test_counts_the_tokens_inside():
    splitter = ThinkingSplitter()
    for token in ["<think>", "a", "b", "c", "</think>", "d"]:
        splitter.feed(token, tokens=1)
    assert splitter.thinking_tokens == 3


def test_a_forced_close_starts_the_answer():
    splitter = ThinkingSplitter(opened=True)
    splitter.feed("so far </th")
    assert [p.text for p in splitter.close()] == ["</th"]
    assert not splitter.thinking
    splitter.feed("\n\n<think>answer")
    assert (splitter.reasoning, splitter.answer) == ("so far </th", "<think>answer")


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [("x<think>\n", True), ("x<think>", True), ("<think>\n\n</think>\n\n", False), ("x", False)],
)
def test_the_prompt_may_open_the_block(prompt, inside):
    assert opens_thinking(prompt) is inside
