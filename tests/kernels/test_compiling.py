"""Compiled kernels where they cannot be had, or not be kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strata_kernels import compiling

ROOT = Path(__file__).parents[2]

PRODUCT = """
import sys
sys.path[:0] = [{root!r}, {kernels!r}]
{before}
import torch
from strata_kernels import compiling
from strata_kernels.product import product
from strata_kernels.table import choose
from strata_kernels.weight import Weight
weight = Weight("f32", {{"weight": torch.ones(3, 5)}}, (3, 5))
assert product(torch.ones(2, 5), [weight], 2).tolist() == [[5.0] * 3] * 2
print(choose("product", ["f32"], "cpu"), compiling.fault(), compiling.cache_fault(), sep="|")
"""


def run(before: str, cache: Path, home: Path) -> list[str]:
    code = PRODUCT.format(root=str(ROOT), kernels=str(ROOT / "kernels"), before=before)
    env = {**os.environ, "STRATA_KERNEL_CACHE": str(cache), "HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=home)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip().split("|")


def test_without_numba_the_reference_runs(tmp_path: Path) -> None:
    chosen, fault, _ = run("sys.modules['numba'] = None", tmp_path / "cache", tmp_path)
    assert chosen == "reference"
    assert "numba is not usable here" in fault
    assert len(fault.splitlines()) == 1


@pytest.mark.skipif(bool(compiling.fault()), reason="no compiled kernels here")
def test_a_cache_that_cannot_be_written_costs_a_line_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    chosen, fault, cache = run("", tmp_path / "file", tmp_path)
    assert (chosen, fault) == ("cpu", "")
    assert str(tmp_path / "file") in cache
    assert not list(tmp_path.rglob("*.nbi"))


@pytest.mark.skipif(bool(compiling.fault()), reason="no compiled kernels here")
def test_a_second_start_finds_what_the_first_compiled(tmp_path: Path) -> None:
    assert run("", tmp_path, tmp_path) == ["cpu", "", ""]
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}
    assert files
    assert run("", tmp_path, tmp_path) == ["cpu", "", ""]
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}
