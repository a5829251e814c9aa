"""Compute ``gap.json`` and the other files of a result from finished runs and their labels."""
