"""Probe pretrained models for recall without training: prompts, scores by load and distance, and layers."""
