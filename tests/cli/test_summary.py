"""The summary at the end of a run, as wide as the page it is written on."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from strata_cli.engine.stats import RunSummary
from strata_cli.engine.types import Downgrade
from strata_cli.ui.console import fold, summary
from tests.cli.fake import make_model
from tests.scripted_engine import ScriptedEngine

ROOT = Path(__file__).parents[2]
FIGURES = ("3 requests, ", "mean acceptance length ", "windows: ", "downgrade: drafts off: a test says so")
FIRST = "3 requests, "


def text_of(monkeypatch: pytest.MonkeyPatch, columns: str) -> str:
    """The summary of a scripted run under COLUMNS."""
    monkeypatch.setenv("COLUMNS", columns)
    seen = RunSummary()
    for events in ScriptedEngine(requests=6).run():
        seen.events(events)
    seen.events([Downgrade("graphs", "capture failed at /a/very/long/path/" + "x" * 60)])
    return summary(seen.totals(wall_s=2.5))


@pytest.mark.parametrize("columns", [40, 60, 79])
def test_lines_fit_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    wide, narrow = text_of(monkeypatch, "500"), text_of(monkeypatch, str(columns))
    assert max(map(len, wide.splitlines())) > columns >= max(map(len, narrow.splitlines()))
    assert "".join(narrow.split()) == "".join(wide.split())
    begins = [line for line in narrow.splitlines() if not line.startswith("  ")]
    assert [line.split()[0] for line in begins] == [line.split()[0] for line in wide.splitlines()]


@pytest.mark.parametrize("width", range(1, 30))
def test_any_width_is_folded(width: int) -> None:
    text = "downgrade: graphs: out of memory on a card of 24 GiB " + "x" * 50
    assert "".join(fold(text, width).split()) == "".join(text.split())
    assert width < 12 or max(map(len, fold(text, width).splitlines())) <= width


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """A run of three prompts with the made-up engine, its records in a file; and its environment."""
    model, file, out = make_model(tmp_path / "model"), tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')

    def make(**env: str) -> tuple[list[str], dict[str, str]]:
        said = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES") and not k.startswith("STRATA_")}
        home = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ".:kernels"}
        args = ["-m", "tests.cli.fake", "run", str(file), "-m", str(model), "-o", str(out), "-b", "3", "--no-tui"]
        return args, {**said, **home, "PYTHONIOENCODING": "utf-8", **env}

    return make


def lines_of(text: str) -> list[str]:
    """The lines of the summary: from its first figure on."""
    assert FIRST in text, text
    return (FIRST + text.split(FIRST, 1)[1]).splitlines()


def check(lines: list[str]) -> None:
    assert all(figure in " ".join(" ".join(lines).split()) for figure in FIGURES), lines


def test_on_a_narrow_terminal(command: Callable[..., tuple[list[str], dict[str, str]]]) -> None:
    args, env = command(TERM="xterm-256color")
    child = pexpect.spawn(sys.executable, args, cwd=str(ROOT), dimensions=(24, 40), env=env, timeout=60)
    text = child.read().decode().replace("\r\n", "\n")
    child.close()
    assert child.exitstatus == 0, text
    lines = lines_of(text)
    check(lines)
    assert max(map(len, lines)) <= 40


def piped(args: list[str], env: dict[str, str]) -> str:
    ran = subprocess.run([sys.executable, *args], cwd=ROOT, env=env, capture_output=True, text=True, encoding="utf-8")
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


def test_without_a_terminal_columns_decides(command: Callable[..., tuple[list[str], dict[str, str]]]) -> None:
    lines = lines_of(piped(*command(COLUMNS="40")))
    check(lines)
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("env", [{}, {"COLUMNS": "0"}, {"COLUMNS": "wide"}])
def test_in_a_log_a_figure_is_a_line(
    command: Callable[..., tuple[list[str], dict[str, str]]], env: dict[str, str]
) -> None:
    lines = lines_of(piped(*command(**env)))
    assert all(any(line.startswith(figure) for line in lines) for figure in FIGURES)
