"""What must not need torch does not: commands start fast, and their parts are tested in milliseconds."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = """
strata_cli.app strata_cli.config strata_cli.errors strata_cli.hub strata_cli.session strata_cli.settings
strata_cli.batch.journal strata_cli.batch.records strata_cli.batch.results strata_cli.batch.runner
strata_cli.chat.dialogue strata_cli.chat.turn
strata_cli.commands.inspect strata_cli.options strata_cli.commands.run strata_cli.demo
strata_cli.engine.acceptance strata_cli.engine.cache.pages strata_cli.engine.drafters.ngram
strata_cli.engine.scheduler strata_cli.engine.seeds strata_cli.engine.stats strata_cli.engine.steptime
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
