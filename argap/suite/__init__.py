"""Train and score several models under the same conditions, and compare them in one table.

``config``: the YAML file · ``layout``: paths, and which models are finished · ``members``: train and score each one ·
``curve``, ``distances``, ``prevalence``, ``trajectory``: tables besides the cells · ``collect``: write the result ·
``earlier``: reuse members of an existing result · ``result``: read it · ``without``: restate it without documents ·
``run``: all of this in order, also on a Ray cluster · ``series``: published checkpoint series instead of training.
"""
