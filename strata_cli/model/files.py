"""The small files of a checkpoint. They come from strangers, so every fault of theirs is a UsageError. No torch."""

import json
import os
import reprlib
from pathlib import Path
from typing import Any

from strata_cli.errors import UsageError

SHOWN = 80  # characters of a value in a message


def present(path: Path) -> bool:
    """Is there such a file? Raises UsageError where the name is that of something else, or of a link to nothing."""
    if os.path.lexists(path) and not path.is_file():
        raise UsageError(f"{path} is not a file", "remove it, or put the model's own in its place")
    return path.is_file()


def read_text(path: Path, hint: str = "") -> str:
    """The text of a file. Raises UsageError: it cannot be read, it is not UTF-8."""
    try:
        return path.read_bytes().decode()
    except OSError as fault:
        raise UsageError(f"cannot read {path}: {fault.strerror}", hint) from fault
    except UnicodeDecodeError as fault:
        raise UsageError(f"cannot read {path}: not UTF-8 at byte {fault.start}", hint) from fault


def read_object(path: Path, hint: str = "") -> dict[str, Any]:
    """The JSON object that a file holds. Raises UsageError as `read_text` and `parse_object` do."""
    return parse_object(read_text(path, hint), str(path), hint)


def parse_object(text: str | bytes, source: str, hint: str = "") -> dict[str, Any]:
    """A JSON object from its text, which messages call `source`.

    Raises UsageError: no JSON, not an object, more nesting or longer numbers than Python's parser takes.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as fault:
        raise UsageError(f"{source}:{fault.lineno}: not valid JSON: {fault.msg}", hint) from fault
    except UnicodeDecodeError as fault:
        raise UsageError(f"{source}: not UTF-8 at byte {fault.start}", hint) from fault
    except RecursionError:
        raise UsageError(f"{source}: nested too deeply", hint) from None
    except ValueError as fault:
        raise UsageError(f"{source}: a number has too many digits", hint) from fault
    if not isinstance(value, dict):
        raise UsageError(f"{source}: must be a JSON object, found {type(value).__name__}", hint)
    return value


def shown(value: Any) -> str:
    """A value from such a file as a message quotes it: in one line, cut short."""
    # reprlib stops at a depth, where json.dumps might meet the recursion limit
    text = reprlib.repr(value) if isinstance(value, list | dict) else json.dumps(value, default=str)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def one_line(text: object) -> str:
    """Foreign words in one line, cut short."""
    line = " ".join(str(text).split())
    return line if len(line) <= 4 * SHOWN else line[: 4 * SHOWN - 3] + "..."
