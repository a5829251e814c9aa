"""Keep and read what is known of each token: log-probs, labels, and both as one table."""
