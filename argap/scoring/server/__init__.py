"""Fetch the log-probs of a text from an OpenAI-compatible completions server, or from an engine in this process."""
