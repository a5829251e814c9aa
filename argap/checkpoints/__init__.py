"""Find, check, load and convert checkpoints."""
