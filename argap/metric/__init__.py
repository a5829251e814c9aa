"""Define the metric and its uncertainty as pure functions of arrays."""
