"""Suites: several models trained and scored under the same conditions, compared in one table.

``config`` the YAML file · ``layout`` paths, and which models are finished · ``members`` train and score each model ·
``curve``, ``distances``, ``prevalence`` and ``trajectory`` further tables beside the cells · ``collect`` write the
result · ``result`` read it · ``run`` all of this in order · ``ray_tasks`` on a Ray cluster · ``series`` published
checkpoint series in place of training.
"""
