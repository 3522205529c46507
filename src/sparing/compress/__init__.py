"""Lossless compression: a range coder driven by a model's predictions."""
