"""``python -m argap`` is the command ``argap``."""

from argap.cli import main

if __name__ == "__main__":
    main()
