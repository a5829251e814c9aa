"""Choose the code that counts and looks up: NumPy, or numba with the same results.

Loading numba takes longer than NumPy needs for small tasks, so it is loaded after the first `SMALL` tokens or pairs of
a process.
"""

from importlib import import_module
from typing import Any

from argap.bigram_index.counting import count_numpy, csr

SMALL = 2**20
"""Tokens or pairs that NumPy handles in 0.3 s; loading numba takes 0.45 to 0.75 s."""

_handled = 0


def counting(size: int) -> Any:
    """Return the counting functions for the next ``size`` tokens.

    They are `argap.bigram_index.counting.count_numpy`, or the module of its compiled functions.
    """
    return import_module("argap.bigram_index.counting.count_numba") if _is_much(size) else count_numpy


def looking_up(size: int) -> Any:
    """Return `argap.bigram_index.counting.csr`, or its compiled counterpart, for the next ``size`` pairs."""
    return import_module("argap.bigram_index.counting.lookup_numba") if _is_much(size) else csr


def _is_much(size: int) -> bool:
    """Return whether the process will have handled more than `SMALL` tokens and pairs after ``size`` more."""
    global _handled
    _handled += size
    return _handled > SMALL
