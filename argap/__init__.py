"""argap: which share of a language model's gap to attention is associative recall.

Importing the package costs nothing: every heavy import lives in the module that needs it.
``import argap.models`` registers the model type ``argap`` with transformers.
"""

__version__ = "0.1.0"
