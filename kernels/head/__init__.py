"""Kernels of the output head: log-probs without the logits."""
