"""Prompt lookup: longest match, most recent occurrence, incremental = from scratch."""

from hypothesis import given
from hypothesis import strategies as st

from strata_cli.engine.drafters.ngram import LONGEST, SHORTEST, NgramIndex

texts = st.lists(st.integers(0, 3), max_size=60)


def search(tokens: list[int], n: int) -> list[int]:
    """The definition, by scanning: longest suffix first, latest earlier occurrence first, looping over its own drafts."""
    for length in range(LONGEST, SHORTEST - 1, -1):
        if length > len(tokens):
            continue
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                out = list(tokens)
                for i in range(n):
                    out.append(out[start + length + i])
                return out[len(tokens) :]
    return []


@given(texts, st.integers(0, 8))
def test_proposes_what_a_scan_finds(tokens: list[int], n: int) -> None:
    assert NgramIndex(tokens).propose(n) == search(tokens, n)


@given(st.lists(texts, max_size=6), st.integers(1, 8))
def test_growing_is_the_same_as_starting_over(pieces: list[list[int]], n: int) -> None:
    index = NgramIndex()
    for piece in pieces:
        index.extend(piece)
        index.propose(n)  # asking changes nothing
    whole = [token for piece in pieces for token in piece]
    assert len(index) == len(whole)
    assert index.propose(n) == NgramIndex(whole).propose(n)


def test_longest_match_beats_a_later_shorter_one() -> None:
    assert NgramIndex([1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4]).propose(1) == [50]


def test_most_recent_of_equal_matches() -> None:
    assert NgramIndex([7, 8, 1, 0, 7, 8, 2, 0, 0, 7, 8]).propose(3) == [2, 0, 0]


def test_one_token_alone_is_no_match() -> None:
    assert NgramIndex([5, 1, 2, 5]).propose(4) == []


def test_a_loop_is_followed_round() -> None:
    assert NgramIndex([1, 2, 3, 1, 2, 3]).propose(7) == [1, 2, 3, 1, 2, 3, 1]
