"""Try a tokenizer on text with long runs of every kind of character: ``python -m argap.text.trial``.

The arguments are the parent and limits of `argap.runtime.child` and a ``tokenizer.json``. Exits with 1 and one line if
the tokenizer cannot be loaded, panics, or makes far more tokens than the text has bytes.
"""

import sys

from argap.runtime.child import confine, end_with_parent

RUN = 100
SIGNS = "aAzZ09 \t\n\r.,-_'\"(/#xéßÅ中あ한я\u0301\u200d😀"
TEXT = "The quick brown fox, 12,345.67 ways; it's café in 東京!\n\n  def f(x):\n\treturn x_1 + 'y'\r\n" + "".join(
    sign * RUN + "!" + sign * 3 + "b " for sign in SIGNS
)
MOST_TOKENS = 100
"""Most tokens for each byte of the text."""


def main(path: str) -> None:
    """Load the tokenizer of ``path`` and encode and decode `TEXT` in every way that argap does."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(path)
    backend.encode_special_tokens = True
    for text in (TEXT, *TEXT.split("!"), "", "a"):
        encoded = backend.encode(text, add_special_tokens=False)
        if len(encoded.ids) > MOST_TOKENS * max(1, len(text.encode())):
            sys.exit(f"{path}: {len(encoded.ids):,} tokens for {len(text.encode()):,} bytes of text")
        backend.decode(encoded.ids, skip_special_tokens=False)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    import tokenizers  # noqa: F401

    confine(*map(int, sys.argv[2:5]))
    try:
        main(sys.argv[5])
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        sys.exit(f"{sys.argv[5]}: not a usable tokenizer ({' '.join(str(error).split())[:200]})")
