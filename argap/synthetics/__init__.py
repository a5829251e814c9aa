"""Synthetic tasks that isolate recall, and models that solve them by hand."""
