"""Find out which windows may share a batch without a window's log-probs depending on the others.

Padding on the right does not affect earlier positions of a causal model, but some families look at the whole batch:
LongRoPE (Phi-3, MiniCPM) picks its frequencies by the length of the longest row, and experts of limited capacity take
tokens of one row in place of another's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

Sharing = Literal["any", "equal", "none"]
"""Which windows may share a batch: any, those of one length, or none."""
BY_LENGTH = ("dynamic", "longrope", "su")
"""Kinds of rotary positions that depend on the length of a batch, perhaps by less than half precision rounds."""
SHORT = 64
"""Tokens of the probes that do not depend on the lengths of windows."""
DIFFERENT = 1e-4
"""Mean difference of log-probs (nats) in float32 beyond which they depend on the batch."""
DIFFERENT_HALF = 0.02
"""The same for narrower dtypes, in which a result rounds differently for each shape."""


def find_sharing(
    windows: Callable[[int], np.ndarray],
    lengths: np.ndarray,
    logprobs: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    *,
    by_length: bool,
    exact: bool,
) -> Sharing:
    """Return which windows may share a batch.

    The shortest window is scored by itself and in a batch with the longest. If its log-probs differ, the same is done
    with two windows of one length.

    ``windows``: the tokens of a window by its number; ``lengths``: of every window. ``logprobs``: the log-probs of
    windows in one batch. ``exact``: the model computes in float32. ``by_length``: its configuration says that it
    depends on the length, which decides where it does not.
    """
    scored = np.flatnonzero(lengths > 1)
    if len(scored) < 2:
        return "any"
    order = scored[np.argsort(lengths[scored], kind="stable")]
    short, long = windows(int(order[0])), windows(int(order[-1]))
    same = min(len(short), SHORT)

    def differ(first: np.ndarray, second: np.ndarray) -> bool:
        (alone,), (shared, _) = logprobs([first]), logprobs([first, second])
        with np.errstate(invalid="ignore"):  # −∞ − −∞
            difference = float(np.abs(alone - shared).mean())
        return difference > (DIFFERENT if exact else DIFFERENT_HALF)

    if len(short) < len(long):
        if not differ(short, long) and (exact or not by_length):
            return "any"
        return "none" if differ(short[:same], long[:same]) else "equal"
    return "none" if differ(short[:same], long[:same]) else "any"


def depends_on_length(config: Mapping[str, Any], longest: int) -> bool:
    """Return whether the rotary positions of a configuration depend on the length of a batch of ``longest`` tokens."""
    nested = [value for value in config.values() if isinstance(value, Mapping)]
    if config.get("rope_type", config.get("type")) in BY_LENGTH:
        return longest > config.get("original_max_position_embeddings", 0)
    # Early configurations have the length of training beside the settings of the positions.
    outer = {key: config[key] for key in ("original_max_position_embeddings",) if config.get(key) is not None}
    return any(depends_on_length({**outer, **inner}, longest) for inner in nested)
