"""Suites: a list of models trained alike, scored alike and put into one table.

``config`` what a suite is · ``members`` train and score each · ``curve`` and ``distances`` what is kept
besides cells · ``prevalence`` · ``collect`` from runs to a result · ``result`` reading it back.
"""
