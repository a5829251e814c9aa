"""Score a text with a model: from a checkpoint, a model in memory or a server to a run."""
