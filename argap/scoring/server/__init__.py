"""Fetch the log-probs of a text from an OpenAI-compatible completions server."""
