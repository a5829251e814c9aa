"""Find what can be copied within a window: opportunities, lengths of repeated contexts, and induction predictions.

Legend: N tokens, W windows; x_0 … x_{T-1} the tokens of one window, i ≥ 1 a scored position. An earlier occurrence ends
at some j < i and may overlap the later one. Each EOS counts as a unique token, equal to no other, so no match
extends over an EOS, nothing can be copied after one, and an EOS is never copied. An EOS target is therefore an
opportunity wherever the token before it occurred before, and always a miss; and the first token of a document, whose
previous token is an EOS, is no opportunity.

All three columns follow from L(i), the length of the longest suffix of x_0 … x_i that also ends at some j < i, and
K(i), the latest such j:

- ``opportunity`` at i: L(i-1) ≥ 1, the previous token occurred before;
- ``match_length`` at i: max(L(i) - 1, 0), as the last of the L(i) tokens is x_i itself;
- ``induction`` at i: x_i equals the token after K(i-1).

L(i) ≤ L(i-1) + 1. Where the token after K(i-1) is x_i, that bound is reached and K(i) = K(i-1) + 1, because a later
end would have been a later K(i-1). Otherwise the earlier ends of the bigram (x_{i-1}, x_i) are compared one by one, the
latest first: a few comparisons per token in natural text, but O(T²) in, say, random bits. A window that takes more than
`COMPARISONS` per token is therefore restarted with a suffix array, in O(T log T) (measured: ``benchmarks/labels.py``).
"""

from typing import NamedTuple

import numpy as np

from argap.bigram_index.counting.intrinsics import jit

COMPARISONS = 32
"""Average comparisons per token after which a window is left to the suffix array."""
LARGEST_VOCABULARY = 2**22
"""Larger ids are renumbered, so that the table of last occurrences stays small."""
HASH = np.uint64(0x9E3779B97F4A7C15)
"""Odd, 2⁶⁴ divided by the golden ratio (Knuth, TAOCP 3, 6.4): its products spread over their high bits."""


class Copies(NamedTuple):
    """One entry per token, ``[N]``; False and 0 at the first position of a window."""

    opportunity: np.ndarray
    """bool: the previous token occurred before in the window, with a token after it."""
    match_length: np.ndarray
    """int32: length of the longest stretch of tokens before this one that occurred earlier before the same token; at
    least 1 if the bigram is repeated, else 0."""
    induction: np.ndarray
    """bool: the token after the latest occurrence of the longest suffix that occurred before is this token. False, and
    meaningless, without an opportunity."""


def find_copies(tokens: np.ndarray, offsets: np.ndarray, eos: int | None = None) -> Copies:
    """Find the opportunities to copy in each window, ``tokens[offsets[w] : offsets[w + 1]]``.

    ``tokens``: integers ``[N]``; ``offsets``: ascending ``[W + 1]``, from 0 to N; ``eos``: the separating id, None
    without one. Extra memory: a few integers per token of the longest window, and one per id.
    """
    tokens = np.ascontiguousarray(tokens)
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    found = Copies(np.zeros(len(tokens), bool), np.zeros(len(tokens), np.int32), np.zeros(len(tokens), bool))
    if not len(tokens):
        return found
    if tokens.min() < 0 or tokens.max() >= LARGEST_VOCABULARY:
        ids, tokens = np.unique(tokens, return_inverse=True)
        eos = None if eos is None or eos not in ids else int(np.searchsorted(ids, eos))
    tokens = tokens.astype(np.int32, copy=False)
    last = np.full(int(tokens.max()) + 1, -1, dtype=np.int32)
    longest = int(np.diff(offsets).max())
    earlier, head = np.empty(longest, dtype=np.int32), np.empty(4 * longest, dtype=np.int32)
    separator, window = -1 if eos is None else eos, 0
    while (window := _find(tokens, offsets, window, separator, last, earlier, head, *found)) < len(offsets) - 1:
        rows = slice(offsets[window], offsets[window + 1])
        by_suffix_array(tokens[rows], separator, *(column[rows] for column in found))
        window += 1
    return found


@jit
def _find(tokens, offsets, first, eos, last, earlier, head, opportunity, match_length, induction):
    """Fill the columns from window ``first`` on; return the first window that takes too many comparisons, else W.

    The suffix array, which few texts need, is called by the caller so that it is not compiled here.
    """
    for w in range(first, len(offsets) - 1):
        start, stop = offsets[w], offsets[w + 1]
        bits = 1
        while 1 << bits < 2 * (stop - start):
            bits += 1
        x, of_window = tokens[start:stop], (opportunity[start:stop], match_length[start:stop], induction[start:stop])
        whole = _by_chains(x, eos, last, earlier, head[: 1 << bits], np.uint64(64 - bits), *of_window)
        for token in x:
            last[token] = -1
        if not whole:
            return w
    return len(offsets) - 1


@jit
def _by_chains(x, eos, last, earlier, head, shift, opportunity, match_length, induction):
    """Fill the columns of one window; return False if that takes too many comparisons.

    ``last``: -1 for each id; the caller resets it; ``earlier[i]``: the latest end before i of a bigram of the same
    hash, -1 for none; ``head``: the latest end of each hash, its size 2 to the power of 64 - ``shift``.
    """
    head[:] = -1
    left = COMPARISONS * len(x)
    length, at = 0, 0  # L(i - 1) and K(i - 1)
    for i in range(len(x)):
        token = x[i]
        copied = length > 0 and x[at + 1] == token and token != eos
        opportunity[i], induction[i] = length > 0, copied
        before = last[token]
        last[token] = i
        if i > 0:
            pair = np.uint64(x[i - 1]) << np.uint64(32) | np.uint64(token)
            bucket = np.int64((pair * HASH) >> shift)
            earlier[i] = head[bucket]
            head[bucket] = i
        if copied:
            length, at = length + 1, at + 1
        elif before < 0 or token == eos:
            length = 0
        else:
            bound, previous = length + 1, x[max(i - 1, 0)]
            length, at = 1, before
            j = earlier[i] if bound > 1 else -1
            while j >= 0 and length < bound:
                left -= 1
                # A longer match needs all of these equal. No EOS is among the `bound` tokens up to i.
                if x[j] == token and x[j - 1] == previous and j >= length and x[j - length] == x[i - length]:
                    same = 2
                    while same < bound and same <= j and x[j - same] == x[i - same]:
                        same += 1
                    left -= same
                    if same > length:
                        length, at = same, j
                j = earlier[j]
            if left < 0:
                return False
        match_length[i] = max(length - 1, 0)
    return True


def by_suffix_array(
    x: np.ndarray, eos: int, opportunity: np.ndarray, match_length: np.ndarray, induction: np.ndarray
) -> None:
    """Fill the columns of one window of T tokens in O(T log T) time and O(T) memory.

    ``x``: int32 ``[T]``; ``eos``: -1 without one; the columns: those of `Copies`, ``[T]``.
    """
    order = np.argsort(x, kind="stable").astype(np.int32)  # NumPy's: numba takes seconds to compile its own
    _by_order(x, eos, order, opportunity, match_length, induction)


@jit
def _by_order(x, eos, order, opportunity, match_length, induction):
    rank = _sort_prefixes(x, order)
    common = _common_suffixes(x, eos, order, rank)
    longest = _longest_earlier(order, rank, common)
    size = 1
    while size < len(x) + 1:
        size *= 2
    # Complete binary trees over the ranks: node k has the children 2k and 2k + 1, and the leaves are the last `size`.
    least, latest = np.full(2 * size, -1, np.int32), np.full(2 * size, -1, np.int32)
    least[size : size + len(x)] = common
    for node in range(size - 1, 0, -1):
        least[node] = min(least[2 * node], least[2 * node + 1])
    at = 0
    for i in range(len(x)):
        length = longest[i - 1] if i else 0
        copied = length > 0 and x[at + 1] == x[i] and x[i] != eos
        opportunity[i], induction[i], match_length[i] = length > 0, copied, max(longest[i] - 1, 0)
        if copied:
            at += 1
        elif longest[i] > 0:
            low, high = _alike(least, size, rank[i], longest[i])
            at = _maximum(latest, low + size, high + size)
        node = rank[i] + size
        while node:  # positions come in ascending order
            latest[node] = i
            node //= 2


@jit
def _sort_prefixes(x, order):
    """Sort the prefixes x_0 … x_i by their tokens read backwards, and return the rank of each.

    ``order``: their numbers i by x_i, which are sorted in place.

    Prefix doubling (Manber and Myers 1993, https://doi.org/10.1137/0222058): ranks by the last 2^k tokens give those by
    the last 2^(k + 1), in two counting sorts; the first is the current order, shifted.
    """
    n = len(x)
    rank, finer = np.empty(n, np.int32), np.empty(n, np.int32)
    shifted, ends = np.empty(n, np.int32), np.empty(n + 1, np.int32)
    classes = 0
    for r in range(n):
        if r and x[order[r]] != x[order[r - 1]]:
            classes += 1
        rank[order[r]] = classes
    classes += 1
    step = 1
    while classes < n:
        _shift_order(order, step, shifted)
        _sort_by_rank(rank, classes, shifted, ends, order)
        classes = _refine_ranks(rank, order, step, finer)
        rank, finer = finer, rank
        step *= 2
    return rank


@jit
def _shift_order(order, step, shifted):
    """Order the prefixes by the tokens before their last ``step``; prefixes without any come first."""
    n = len(order)
    k = min(step, n)
    for i in range(k):
        shifted[i] = i
    for i in order:
        if i + step < n:
            shifted[k] = i + step
            k += 1


@jit
def _sort_by_rank(rank, classes, shifted, ends, order):
    """Sort ``shifted`` stably by rank (the last ``step`` tokens) into ``order``, by counting in ``ends``."""
    ends[: classes + 1] = 0
    for i in range(len(rank)):
        ends[rank[i] + 1] += 1
    for c in range(classes):
        ends[c + 1] += ends[c]
    for i in shifted:
        order[ends[rank[i]]] = i
        ends[rank[i]] += 1


@jit
def _refine_ranks(rank, order, step, finer):
    """Rank the prefixes by their last 2·``step`` tokens and return the number of ranks; equal prefixes share one."""
    classes = 0
    for r in range(len(order)):
        if r:
            i, j = order[r], order[r - 1]
            of_i, of_j = rank[i - step] if i >= step else -1, rank[j - step] if j >= step else -1
            classes += rank[i] != rank[j] or of_i != of_j
        finer[order[r]] = classes
    return classes + 1


@jit
def _common_suffixes(x, eos, order, rank):
    """Return how many last tokens since an EOS the prefix of each rank shares with the previous rank's; -1 at rank 0.

    The order before an EOS does not matter: prefixes that share everything after it are adjacent. The length falls by
    at most one from a prefix to the one that is a token shorter (Kasai et al. 2001,
    https://doi.org/10.1007/3-540-48194-X_17).
    """
    common = np.full(len(x), -1, np.int32)
    same = 0
    for i in range(len(x) - 1, -1, -1):
        if rank[i] == 0:
            same = 0
            continue
        j = order[rank[i] - 1]
        while same <= i and same <= j and x[i - same] == x[j - same] and x[i - same] != eos:
            same += 1
        common[rank[i]] = same
        same = max(same - 1, 0)
    return common


@jit
def _longest_earlier(order, rank, common):
    """Return L: for each prefix, the longest suffix shared with one that ends earlier.

    If prefixes are removed from last to first, the best match that ends earlier is a neighbour in rank
    (Crochemore and Ilie 2008, https://doi.org/10.1016/j.ipl.2007.10.006).
    """
    n = len(order)
    longest = np.zeros(n, np.int32)
    below, above = np.arange(-1, n - 1).astype(np.int32), np.arange(1, n + 1).astype(np.int32)
    shared = np.append(common, np.int32(-1))  # between each rank and the nearest remaining one below
    for i in range(n - 1, -1, -1):
        r = rank[i]
        longest[i] = max(shared[r], shared[above[r]], 0)
        shared[above[r]] = min(shared[r], shared[above[r]])
        if below[r] >= 0:
            above[below[r]] = above[r]
        if above[r] < n:
            below[above[r]] = below[r]
    return longest


@jit
def _alike(least, size, rank, length):
    """Return the first and the last rank whose prefixes share ``length`` last tokens with that of ``rank``.

    ``least``: the tree of minima of `_common_suffixes`, -1 beyond the last rank.
    """
    node = rank + size
    if least[node] >= length:  # else the first rank is this one
        while node % 2 == 0 or least[node - 1] >= length:
            node //= 2
        node -= 1
        while node < size:
            node = 2 * node + (least[2 * node + 1] < length)
    low = node - size
    node = rank + size
    while node % 2 == 1 or least[node + 1] >= length:
        node //= 2
    node += 1
    while node < size:
        node = 2 * node + (least[2 * node] >= length)
    return low, node - size - 1


@jit
def _maximum(tree, low, high):
    """Return the largest value of the leaves from node ``low`` to node ``high`` of a tree of maxima."""
    largest = -1
    while low <= high:
        if low % 2 == 1:
            largest = max(largest, tree[low])
            low += 1
        if high % 2 == 0:
            largest = max(largest, tree[high])
            high -= 1
        low //= 2
        high //= 2
    return largest
