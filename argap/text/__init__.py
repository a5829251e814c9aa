"""Turn text into tokens and words."""
