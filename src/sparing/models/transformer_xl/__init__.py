"""Transformer-XL: its settings, layers and model."""
