"""Read the tokens or counts that an index is built from."""
