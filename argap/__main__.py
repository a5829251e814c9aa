"""Run the script ``argap`` and ``python -m argap``.

An interrupt while the command line is being imported, or after the command, ends the process at once: nothing has
begun, or all is written, and the interrupted imports or exit functions of libraries would print a traceback.
"""

import os
import signal


def main() -> None:
    """Run the script ``argap``."""
    foreground = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores it
    if foreground:
        signal.signal(signal.SIGINT, _end)
    from argap.cli import main as command

    if foreground:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command()
    finally:
        if foreground:
            signal.signal(signal.SIGINT, _end)


def _end(_number: int, _frame: object) -> None:
    os._exit(130)


if __name__ == "__main__":
    main()
