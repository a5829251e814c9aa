"""Segments: one text, the tokens of several tokenizers, and the bytes on which their log-probs can be compared.

`ends` says at which byte each token of a document ends, `cut` finds the finest segments whose ends are token ends of
every tokenizer, `evaluation` cuts the text into the same windows for every model, and `runs` writes the log-probs of
each model as sums over segments.
"""
