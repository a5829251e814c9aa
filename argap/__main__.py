"""Run the script ``argap`` and ``python -m argap``.

An interrupt while the command line is being imported ends the process at once: nothing has begun, and the interrupted
imports would print a traceback.
"""

import os
import signal


def main() -> None:
    """Run the script ``argap``."""
    foreground = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores it
    if foreground:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from argap.cli import main as command

    if foreground:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
