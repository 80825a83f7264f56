"""The wheel holds what is tracked: a forgotten subpackage, profile or file of the demo model fails here."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# folder in the repository -> package in the wheel; longest first
ROOTS = {"kernels/strata_kernels": "strata_kernels", "profiles": "strata_cli/profiles", "strata_cli": "strata_cli"}


def tracked() -> list[str]:
    """Files that git knows and that are there, by path from the root."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def in_wheel(name: str) -> str | None:
    """Where a tracked file belongs in the wheel; None: nowhere."""
    for folder, package in ROOTS.items():
        if name.startswith(folder + "/"):
            inside = f"{package}{name.removeprefix(folder)}"
            is_data = inside.startswith("strata_cli/demo/model/") or name.startswith("profiles/")
            return inside if name.endswith(".py") or is_data else None
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in a wheel built from a clean copy (a stale build/ would leak into it), without a network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*command, "-w", str(out)], cwd=source, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    (file,) = out.glob("*.whl")
    assert file.name.startswith("strata_moe-")
    with zipfile.ZipFile(file) as archive:
        return archive.namelist()


def test_nothing_is_missing_and_nothing_is_extra(wheel):
    expected = {place for name in tracked() if (place := in_wheel(name))}
    found = {name for name in wheel if ".dist-info/" not in name}
    assert found == expected
    assert len(expected) > 50


def test_two_names_at_the_top(wheel):
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == {"strata_cli", "strata_kernels"}


def test_licence_and_command_come_along(wheel):
    names = {name.split(".dist-info/")[-1] for name in wheel}
    assert {"licenses/LICENSE", "entry_points.txt", "METADATA"} <= names
