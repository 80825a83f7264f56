"""Errors a person sees, and the exit codes of every command."""

OK = 0
FAILED = 1
USAGE = 2  # bad flags or bad input, found before any work was done
RECORDS_FAILED = 3  # a batch finished, but some of its records are errors
INTERRUPTED = 130


class StrataError(Exception):
    """One line for the user: what happened (with the numbers), what to do, and the exit code.

    Args:
        what: what happened, in one line.
        hint: what the user can do about it, or "".
        exit_code: one of the codes above.
    """

    def __init__(self, what: str, hint: str = "", exit_code: int = FAILED):
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.what} ({self.hint})" if self.hint else self.what


class UsageError(StrataError):
    """Bad flags or bad input: exit code 2."""

    def __init__(self, what: str, hint: str = ""):
        super().__init__(what, hint, USAGE)
