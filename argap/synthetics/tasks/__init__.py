"""The synthetic tasks: one module per task, the type of their examples, and the registry of those a run can train on."""
