"""Sequence mixers, one file each."""
