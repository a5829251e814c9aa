"""The synthetic tasks, one module each, the type of their examples, and the registry of tasks for training."""
