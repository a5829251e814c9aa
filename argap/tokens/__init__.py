"""Write and read the data of each token: log-probs, labels, and both as one table."""
