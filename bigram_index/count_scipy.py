"""Counting a stream of tokens as a sparse matrix: the path for a Python that numba does not support yet."""

import numpy as np
from scipy.sparse import coo_array

from argap.bigram_index.runs import MemoryRun


def count_stream(tokens: np.ndarray, vocab_size: int, boundary: int | None = None) -> MemoryRun:
    """What `argap.bigram_index.count_reference.count_stream` gives: the pairs as entries of a matrix in
    coordinates, which the conversion to rows sorts and sums."""
    shape = (vocab_size + 1, vocab_size + 1)  # one for a boundary behind the last id
    pairs = (tokens[:-1].astype(np.int32), tokens[1:].astype(np.int32))
    matrix = coo_array((np.ones(len(pairs[0]), dtype=np.uint32), pairs), shape=shape).tocsr()
    if boundary is not None:
        matrix.data[matrix.indptr[boundary] : matrix.indptr[boundary + 1]] = 0
        matrix.data[matrix.indices == boundary] = 0
        matrix.eliminate_zeros()
    indptr = matrix.indptr[: vocab_size + 1].astype(np.int64)
    return MemoryRun(indptr, matrix.indices.astype(tokens.dtype), matrix.data)
