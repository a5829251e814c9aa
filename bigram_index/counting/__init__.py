"""Count bigrams and look counts up."""
