"""Run the script ``argap`` and ``python -m argap``.

An interrupt while the command line is being imported, or after the command, ends the process at once: there is nothing
to lose, and Python would print a traceback of its imports or of the threads that it waits for. So what is imported
before is built in: the module ``signal`` itself makes its enums in Python.
"""

import _signal as signal  # pyright: ignore[reportMissingImports]
import os
import sys


def main() -> None:
    """Run the script ``argap``."""

    def end(_number: int, _frame: object) -> None:
        os._exit(130)

    foreground = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores it
    if foreground:
        signal.signal(signal.SIGINT, end)
    import warnings

    if not sys.warnoptions:  # what libraries warn of names their own files and no input; `python -W default` shows it
        for category in (UserWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
    os.environ.pop("MPLBACKEND", None)  # no window is opened; matplotlib would refuse a name that it does not know
    try:
        from argap.cli import main as command
    except ModuleNotFoundError as error:
        package = (error.name or "argap").partition(".")[0]
        if package == "argap":
            raise
        remedy = "install argap there with what it needs: `pip install argap`"
        raise SystemExit(f"argap: {package} is not installed for {sys.executable}; {remedy}") from None

    if foreground:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command()
    finally:
        if foreground:
            signal.signal(signal.SIGINT, end)


if __name__ == "__main__":
    main()
