"""A baseline without a model: find what came last after the end of the prompt's words, and copy on.

It shows what is there to be gained by looking back alone: the floor that recall should clear.
"""

from collections.abc import Sequence

from argap.recall.decoding import Generation
from argap.tokenizer import Tokenizer

NAME = "copy"


class CopyBaseline:
    """Continues a prompt after the latest earlier place of its longest repeated suffix (an induction head
    of unbounded length)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def generate(self, prompts: Sequence[Sequence[int]], *, until: Sequence[str], new_tokens: int) -> list[Generation]:
        return [self._copy(list(prompt), until, new_tokens) for prompt in prompts]

    def _copy(self, prompt: list[int], until: Sequence[str], new_tokens: int) -> Generation:
        start = place_after(prompt)
        ids = [] if start is None else prompt[start : start + new_tokens]
        text = self.tokenizer.decode(ids)
        cuts = [at for stop in until if (at := text.find(stop)) >= 0]
        return Generation(ids, text[: min(cuts)] if cuts else text, "stop" if cuts else "length")


def place_after(prompt: list[int]) -> int | None:
    """The position after the latest earlier occurrence of the longest repeated suffix; None: there is none."""
    best, place = 0, None
    for end in range(len(prompt) - 1, 0, -1):
        length = 0
        while length < end and prompt[end - 1 - length] == prompt[-1 - length]:
            length += 1
        if length > best:
            best, place = length, end
    return place
