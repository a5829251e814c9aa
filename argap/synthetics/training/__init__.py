"""Train small models on synthetic tasks."""
