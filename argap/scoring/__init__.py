"""Score a text with a checkpoint, a model in memory or a server, and write the log-probs as a run."""
