"""argap: which share of a language model's gap to attention is associative recall.

Importing the package costs nothing: every heavy import lives in the module that needs it.
``import argap.models`` registers the model type ``argap`` with transformers.
"""

import os

if not os.path.isdir(os.path.join(__path__[0], "kernels")):
    # A checkout without symbolic links, used in place: the three linked folders are beside this one.
    __path__.append(os.path.dirname(__path__[0]))

__version__ = "0.1.0"
