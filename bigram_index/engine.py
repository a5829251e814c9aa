"""What this installation counts and looks up with: numba, or SciPy and NumPy where numba is not there."""

try:
    from argap.bigram_index.probe import count_pairs
    from argap.bigram_index.scatter import count_stream, merge_rows

    BYTES_PER_TOKEN = 20
    """Peak bytes for each token of a chunk whose bigrams are all distinct, the token included."""
except ImportError:  # numba follows a new Python some months late
    from argap.bigram_index.count_reference import merge_rows
    from argap.bigram_index.count_scipy import count_stream
    from argap.bigram_index.lookup import count_pairs

    BYTES_PER_TOKEN = 48

__all__ = ["BYTES_PER_TOKEN", "count_pairs", "count_stream", "merge_rows"]
