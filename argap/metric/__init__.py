"""Compute the metric from arrays: the share of a gap, its intervals, the bins and the threshold."""
