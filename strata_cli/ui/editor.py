"""A text in the person's own editor. No torch."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from strata_cli.errors import StrataError, UsageError


def edit_text(text: str) -> str:
    """The text as it leaves $VISUAL or $EDITOR.

    Raises:
        UsageError: neither is set.
        StrataError: the editor did not start or failed.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise UsageError("neither $VISUAL nor $EDITOR is set", "export EDITOR=nano, for one")
    with tempfile.TemporaryDirectory(prefix="strata-") as folder:
        path = Path(folder) / "message.md"
        path.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), path], check=True)
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise StrataError(f"the editor {editor!r} failed: {error}") from None
