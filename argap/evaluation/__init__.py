"""Choose which tokens are scored: windows, documents and segments."""
