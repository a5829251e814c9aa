"""Compute what slices of the tokens contribute to a gap."""
