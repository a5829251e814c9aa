"""Recall benchmarks: does a model find in its context what the question asks for, and if not, why?

``examples`` (rows in) → ``prompts`` (what the model reads) → ``decoding`` (what it answers) → ``why`` (what
it knew) → ``run`` (files) → ``analysis`` (tables). ``adapter`` gives the same models to lm-eval.
"""
