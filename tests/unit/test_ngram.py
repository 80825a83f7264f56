"""Prompt lookup against a plain search of the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from strata_cli.engine.drafters.ngram import LONGEST, SHORTEST, NgramIndex


def searched(text: list[int], n: int) -> list[int]:
    """The continuation of the latest earlier occurrence of the longest suffix, by looking at every place."""
    for length in range(LONGEST, SHORTEST - 1, -1):
        for place in range(len(text) - 1, length - 1, -1):
            if len(text) >= length and text[place - length : place] == text[-length:]:
                return text[place : place + n]
    return []


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=12), st.integers(1, 6))
def test_the_index_finds_what_a_search_finds(pieces: list[list[int]], n: int) -> None:
    index, text = NgramIndex(), []
    for piece in pieces:
        index.extend(piece)
        text += piece
        assert index.propose(n) == searched(text, n)


def test_a_repeated_text_is_continued() -> None:
    index = NgramIndex()
    index.extend([1, 2, 3, 4, 5, 9, 1, 2, 3])
    assert index.propose(3) == [4, 5, 9]
