"""Log-probs of a text from an OpenAI-compatible completions server: client, dialects, and the run they make."""
