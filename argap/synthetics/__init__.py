"""Synthetic tasks that isolate recall: generators (`tasks`), training, sweeps, and models with weights set by hand."""
