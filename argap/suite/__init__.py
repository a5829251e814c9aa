"""Suites: a list of models trained alike, scored alike and put into one table.

``config`` what a suite is · ``layout`` where things lie and what is finished · ``members`` train and score each ·
``curve``, ``distances``, ``prevalence`` and ``trajectory`` what is kept besides cells · ``collect`` from runs to a
result · ``result`` reading it back.
"""
