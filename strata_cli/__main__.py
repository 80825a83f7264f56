"""Entry point of `strata`, and of `python -m strata_cli`: a Ctrl-C that comes while Python still imports ends it
quietly, as it ends a program that has no handler.
"""

import signal


def main() -> None:
    """Import the command line, then run it."""
    if mine := signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where the parent ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from strata_cli.app import main as strata

    if mine:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    strata()


if __name__ == "__main__":
    main()
