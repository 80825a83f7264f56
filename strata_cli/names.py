"""Arguments and file names as text, whatever the locale says they are.

Python reads arguments and file names by the locale; where that is not UTF-8 (`LC_ALL=C`), a name is a string that opens
its file but is no text: it cannot be tokenized, put into JSON or shown. Names stay as Python gave them wherever a file
is opened, and go through `text_of` wherever they are read by a person, a model or a file.
"""

import os

from strata_cli.errors import UsageError


def text_of(name: str) -> str:
    """An argument or file name as the text it is in UTF-8, or else in the locale. Text stays as it is.

    Raises UsageError: it is neither.
    """
    try:
        stored = os.fsencode(name)
    except UnicodeEncodeError:  # no name in this locale could be that: it is text already
        return name
    try:
        return stored.decode("utf-8")
    except UnicodeDecodeError:
        if readable(name) != name:
            shown = stored.decode("utf-8", "backslashreplace")
            raise UsageError(f"'{shown}' is no text in UTF-8", "arguments and file names in UTF-8") from None
        return name


def os_name(text: str) -> str:
    """The name under which a file is opened that is called `text` in UTF-8; what `text_of` undoes."""
    return os.fsdecode(text_of(text).encode("utf-8"))


def readable(name: str) -> str:
    """Any name or message with such names in it, fit to be shown; a byte that is not text shows as U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
