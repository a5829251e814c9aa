"""Checkpoints of known families, read into the native model: a configuration and a weight map for each.

A family is one file here: which `argap.models.ArgapConfig` its ``config.json`` means, and which of its
tensors each native weight is made of. `argap.models.hub.registry` finds it, `argap.models.hub.load` reads it.
"""
