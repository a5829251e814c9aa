"""Results: ``gap.json`` and what stands beside it, from finished runs and their labels."""
