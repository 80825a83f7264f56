"""Candidates in columns: layout as a pure function, and redrawing on an emulated terminal."""

import io

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from strata_cli.chat.turn import Answer
from strata_cli.config import SamplingParams
from strata_cli.text.thinking import ThinkingSplitter
from strata_cli.ui.candidates import NARROWEST, Columns, Listing, columns, wrapped
from strata_cli.ui.stream import Channels


def test_words_stay_whole_where_they_can():
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("abcdefghij kl", 4) == ["abcd", "efgh", "ij", "kl"]
    assert wrapped("a\n\nb", 9) == ["a", "", "b"]
    assert wrapped("你好你好", 5) == ["你好", "你好"]
    assert wrapped("", 5) == [""]


@given(st.text(alphabet="ab 你\n\t\x1bé", max_size=60), st.integers(2, 20))
def test_no_line_is_wider_than_asked_and_no_letter_is_lost(text, width):
    lines = wrapped(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert [c for c in "".join(lines) if c in "ab你é"] == [c for c in text if c in "ab你é"]


def test_side_by_side():
    assert columns([("1", "aa bb"), ("2", "c")], 51) == [
        "1                        │ 2",
        "aa bb                    │ c",
    ]


@pytest.mark.parametrize(("width", "across"), [(200, 4), (4 * NARROWEST + 9, 4), (80, 2), (51, 2), (50, 1), (10, 1)])
def test_as_many_columns_as_are_wide_enough(width, across):
    lines = columns([(f"head{i}", f"text{i}") for i in range(4)], width)
    assert lines[0].count("head") == across
    assert [i for i in range(4) if any(f"text{i}" in line for line in lines)] == [0, 1, 2, 3]
    assert all(cell_len(line) <= width for line in lines)


def test_a_short_column_shows_the_end():
    lines = columns([("1", " ".join(map(str, range(5000)))), ("2", "short")], 60, 6)
    assert len(lines) == 6 and "4999" in lines[-1] and "short" in lines[1]


def answers(n: int) -> list[Answer]:
    return [Answer(i, SamplingParams(), ThinkingSplitter()) for i in range(n)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_redrawing_leaves_one_picture_and_what_stood_above(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "12")
    err = Terminal()
    err.write("> question\n")
    both = answers(2)
    live = Columns(Channels(io.StringIO(), err), both)
    for i in range(30):
        for answer in both:
            answer.splitter.feed(f"word{i} ")
            answer.tokens += 1
        live._next = 0.0
        live.tick()
    live.end()
    screen = pyte.HistoryScreen(60, 12, history=100)
    pyte.Stream(screen).feed(err.getvalue().replace("\n", "\r\n"))
    rows = ["".join(line[x].data for x in range(60)).rstrip() for line in screen.history.top]
    rows += [line.rstrip() for line in screen.display if line.strip()]
    assert rows[0] == "> question" and rows[1].startswith("1 · 30 tok · answering")
    text = "\n".join(rows)
    assert all(text.count(f"word{i} ") + text.count(f"word{i}\n") <= 2 for i in range(30))
    assert text.count("word29") == 2 and text.count("word0") == 2 and text.count("tok") == 2


def test_a_listing_streams_the_first_and_keeps_the_order():
    sink, three = io.StringIO(), answers(3)
    listing = Listing(sink, three)
    three[1].splitter.feed("second")
    three[1].done = True
    three[0].splitter.feed("fir")
    listing.tick()
    assert sink.getvalue() == "--- candidate 1 ---\nfir"
    three[0].splitter.feed("st\n")
    three[0].done = True
    listing.tick()
    assert sink.getvalue() == "--- candidate 1 ---\nfirst\n--- candidate 2 ---\nsecond\n--- candidate 3 ---\n"
    three[2].splitter.feed("third")
    three[2].done = True
    listing.end()
    listing.end()
    assert sink.getvalue().endswith("--- candidate 3 ---\nthird\n")
