"""Fused elementwise kernels: norms, gates, rotary positions and token shift."""
