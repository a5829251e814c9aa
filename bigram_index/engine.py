"""What this installation counts and looks up with: numba, or SciPy and NumPy where numba is not there."""

try:
    from argap.bigram_index.gather import gather, tally
    from argap.bigram_index.probe import count_pairs
    from argap.bigram_index.scatter import count_stream, merge_rows

    SCRATCH = 12
    """Peak bytes for each token of a chunk whose bigrams are all distinct: this and three times the token
    itself (the stream, the scattered stream, the run)."""
except ImportError:  # numba follows a new Python some months late
    from argap.bigram_index.count_reference import gather, merge_rows, tally
    from argap.bigram_index.count_scipy import count_stream
    from argap.bigram_index.lookup import count_pairs

    SCRATCH = 40

__all__ = ["SCRATCH", "count_pairs", "count_stream", "gather", "merge_rows", "tally"]
