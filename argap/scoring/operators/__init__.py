"""argap's operators in the place of the functions that transformers' mixers call by name, on one loaded model."""
