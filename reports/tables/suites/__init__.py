"""Tables over the members of a suite."""
