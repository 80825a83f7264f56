"""Who may import what: no torch where none is needed, no command by a command, nothing private of another package."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = """
strata_cli.app strata_cli.config strata_cli.errors strata_cli.hub strata_cli.settings strata_cli.session
strata_cli.batch.journal strata_cli.batch.records strata_cli.batch.results strata_cli.batch.runner
strata_cli.chat.dialogue strata_cli.chat.turn
strata_cli.commands.inspect strata_cli.options strata_cli.commands.run strata_cli.demo
strata_cli.engine.planning strata_cli.engine.cache.pages strata_cli.engine.drafters.ngram
strata_cli.engine.scheduler strata_cli.engine.seeds strata_cli.engine.stats strata_cli.engine.planning.steptime
strata_cli.engine.types strata_cli.engine.window
strata_cli.inspect.reader strata_cli.model.config strata_cli.model.memory strata_cli.model.weights.checkpoint
strata_cli.text.stop strata_cli.text.template strata_cli.text.thinking strata_cli.text.tokenizer
strata_cli.ui.console strata_cli.ui.live
""".split()


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_no_torch(module):
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def imported(file: Path) -> set[str]:
    """The modules and names that a file imports, wherever in it: `a.b` for `import a.b` and for `from a import b`."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
    return found


COMMANDS = sorted(p for p in (ROOT / "strata_cli" / "commands").glob("*.py") if p.stem != "__init__")


@pytest.mark.parametrize("file", COMMANDS, ids=lambda file: file.stem)
def test_no_command_imports_another(file):
    assert not [name for name in imported(file) if name.startswith(("strata_cli.commands", "."))]


def test_nothing_private_of_another_package():
    """What another package keeps to itself changes without notice, and would pin its version."""
    own = ("", "strata_cli", "strata_kernels", "__future__")
    found = [
        (str(file.relative_to(ROOT)), name)
        for root in ("strata_cli", "kernels", "profiles", "examples")
        for file in sorted((ROOT / root).rglob("*.py"))
        for name in imported(file)
        if name.split(".")[0] not in own and any(part.startswith("_") for part in name.split("."))
    ]
    assert found == []


def test_no_dependency_is_pinned_from_above():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not [line for line in project["dependencies"] if "<" in line or "==" in line or "~" in line]


def test_a_class_name_means_one_thing():
    found: dict[str, set[str]] = {}
    for root in ("strata_cli", "kernels", "profiles"):
        for file in sorted((ROOT / root).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, set()).add(str(file.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


@pytest.mark.parametrize("root", ["strata_cli", "kernels", "profiles", "examples"])
def test_no_module_is_long(root):
    long = {
        str(p.relative_to(ROOT)): n
        for p in (ROOT / root).rglob("*.py")
        if (n := len(p.read_bytes().splitlines())) > 400
    }
    assert long == {}
