"""Chunked kernels of linear attention, gated linear attention, the delta rule and WKV."""
