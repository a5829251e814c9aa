"""Checkpoints of known families, read into the native model: a configuration and a weight map for each.

A family maps its ``config.json`` to an `argap.models.ArgapConfig`, and its tensors to the native weights.
`argap.models.hub.registry` finds the family, `argap.models.hub.load` reads the checkpoint.
"""
