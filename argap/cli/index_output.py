"""What the commands of ``argap index`` share: reading amounts, describing an index, showing progress."""

import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from argap.errors import ArgapError

if TYPE_CHECKING:
    from argap.bigram_index.store import BigramIndex


def describe(index: "BigramIndex") -> str:
    """A few lines on an index, for people."""
    manifest = index.manifest
    size = sum(part["bytes"] for part in manifest.parts)
    lines = [
        ("index", str(index.folder)),
        ("tokenizer", f"{index.tokenizer} ({index.tokenizer_fingerprint[:12]}, {index.vocab_size:,} ids)"),
        *([("proxy", f"not counted from documents: {manifest.origin}")] if index.proxy else []),
        ("documents", f"{index.documents:,} (and {manifest.empty_documents:,} without a token)"),
        ("tokens", f"{index.tokens:,}"),
        ("bigrams", f"{index.bigrams:,} ({index.distinct:,} distinct)"),
        ("size", f"{size:,} bytes in {len(manifest.parts)} parts"),
        ("sources", ", ".join(index.sources)),
    ]
    return "\n".join(f"{name:<10} {value}" for name, value in lines)


def parse_bytes(text: str) -> int:
    """``2GB`` (10⁹), ``512MiB`` (2²⁰) or a plain number of bytes. Raises `ArgapError` for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if match is None:
        raise ArgapError(f"{text!r} is no amount of memory; expected for instance 2GB or 512MiB")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " "))


def parse_tokens(text: str) -> float:
    """``10B``, ``1.5T``, ``300M`` or a plain number of tokens. Raises `ArgapError` for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMBT]?)\s*", text, re.IGNORECASE)
    if match is None:
        raise ArgapError(f"{text!r} is no number of tokens; expected for instance 10B or 1T")
    return float(match[1]) * 1000 ** " KMBT".index(match[2].upper() or " ")


def time_left(seconds: float, share: float) -> str:
    """What is left after ``seconds`` for ``share`` (0 to 1) of the work: ``42 s``, ``3:05 min``, ``2:10 h``."""
    left = round(seconds * (1 - share) / share)
    if left < 60:
        return f"{left} s"
    return f"{left // 60}:{left % 60:02} min" if left < 3600 else f"{left // 3600}:{left % 3600 // 60:02} h"


LOOK = 2**16


class Meter:
    """Progress on stderr: one line that is rewritten on a terminal, a line every half minute elsewhere."""

    def __init__(self, share_read: Callable[[], float | None]) -> None:
        self._share_read = share_read
        self._terminal = sys.stderr.isatty()
        self._begun = self._shown = time.monotonic()
        self._looked = self._documents = self._tokens = 0

    def __call__(self, documents: int, tokens: int) -> None:
        self._documents, self._tokens = documents, tokens
        if tokens - self._looked < LOOK:  # at the clock; for every document it would cost more than counting it
            return
        self._looked = tokens
        now = time.monotonic()
        if now - self._shown > (0.5 if self._terminal else 30):
            self._shown = now
            self._print("\r" if self._terminal else "")

    def finish(self, index: "BigramIndex") -> None:
        """Print the final state and end the line."""
        self._documents, self._tokens = index.documents, index.tokens
        self._print("\r" if self._terminal else "")
        if self._terminal:
            print(file=sys.stderr)

    def _print(self, start: str) -> None:
        seconds = max(time.monotonic() - self._begun, 1e-9)
        rate, share = self._tokens / seconds, self._share_read()
        line = f"argap: {self._documents:,} documents, {self._tokens:,} tokens, {rate / 1e6:.2f} M tokens/s"
        if share and share < 1:
            line += f", {share:.0%} read, {time_left(seconds, share)} left"
        print(start + line, end="" if self._terminal else "\n", file=sys.stderr, flush=True)
