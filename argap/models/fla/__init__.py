"""Train recurrent mixers with the operators of flash-linear-attention."""
