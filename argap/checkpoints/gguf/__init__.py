"""GGUF files: their header, tokenizer and dequantised weights, each read once, and their conversion to safetensors.

A file is named ``FOLDER/NAME.gguf``, or on the hub ``OWNER/REPOSITORY/NAME.gguf``. transformers knows the
architectures; argap reads the file for it.
"""
