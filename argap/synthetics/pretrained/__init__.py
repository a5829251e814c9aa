"""Test models pretrained on text for recall of key-value pairs."""
