"""Kernels of causal convolutions, short and long."""
