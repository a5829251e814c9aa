"""Sliding-window attention."""
