"""The script that measures products runs and prints a line a format."""

import pytest

from examples.product_speed import main


def test_a_line_for_each_format_and_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shapes", "16x32,8x64", "--rows", "1,3", "--formats", "int4,bf16"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()][-4:]
    assert [(line[0], line[-5]) for line in lines] == [
        ("int4", "16x32"),
        ("bf16", "16x32"),
        ("int4", "8x64"),
        ("bf16", "8x64"),
    ]
    assert all(float(word) >= 0 for line in lines for word in line[-4:])
