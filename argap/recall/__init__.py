"""Recall benchmarks: can a model repeat what its context says, and if not, why not?

``examples`` (questions) → ``prompts`` (the model's input) → ``decoding`` (its answers) → ``samples`` (one row per
example, on disk) → ``scores`` (one model on one task) → ``result`` (all models, ``recall.json``). ``run`` connects
them; ``answered`` takes a model's samples from an earlier call. ``lm_eval_model`` and ``lm_eval_tasks`` are the two
sides of lm-eval.
"""
