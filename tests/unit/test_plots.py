"""Plots in text."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.ui.plots import bar, keeps_line, line_plot, sparkline, stacked

PLAIN = [True, False]


def test_sparkline_is_on_a_scale_from_zero() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 7, 7]) == "███"
    assert sparkline([0, 0]) == "▁▁" and sparkline([]) == ""
    assert sparkline([3.5, None, float("nan")], top=7) == "▅  "
    assert sparkline([0, 7], ascii=True) == "_@"


def test_keeps_fill_the_character_at_a_full_window_and_a_dot_is_a_window_sat_out() -> None:
    assert keeps_line([0, 1, 3, 5], 5) == "·▁▅█"
    assert keeps_line([1, 2], 2) == "▁█"
    assert keeps_line([1], 1) == "▁"  # without drafts a window never gives more
    assert keeps_line([0, 1, 9, 12], 17, ascii=True) == ".19+"


def test_bars() -> None:
    assert bar(0.5, 8) == "████░░░░" and bar(0.25, 8, ascii=True) == "##------"
    assert bar(-1, 4) == "░░░░" and bar(7, 4) == "████"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.integers(1, 120))
def test_stacked_parts_fill_their_share(weights: list[float], width: int) -> None:
    total = sum(weights) or 1.0
    names = ["draft", "verify", "sample", "commit", "plan", "host", "other"]
    shares = [(name, w / total) for name, w in zip(names, weights)]
    text = stacked(shares, width, ascii=True)
    assert len(text) == (width if sum(weights) else 0)
    for (_, share), mark in zip(shares, "dVscph."):
        assert abs(text.count(mark) - share * width) <= 1


@pytest.mark.parametrize("ascii", PLAIN)
def test_a_line_plot_is_as_large_as_it_says_and_has_its_largest_value(ascii: bool) -> None:
    xs, ys = [float(i) for i in range(50)], [100.0 + i for i in range(50)]
    lines = line_plot(xs, ys, width=60, height=8, ascii=ascii)
    assert max(map(len, lines)) <= 60 and any("149" in line for line in lines)
    assert line_plot([], [], width=60, height=8) == []


def test_the_plain_plot_rises_where_the_values_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotext", None)  # not installed
    xs, ys = [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]
    *rows, axis = line_plot(xs, ys, width=4 + 3, height=4)
    columns = list(zip(*(row[3:].ljust(4) for row in rows)))
    assert [sum(c == "█" for c in column) for column in columns] == [1, 2, 3, 4]
    assert axis.split() == ["0", "3"] or axis.strip() == "0 3"
