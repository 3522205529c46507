"""Lossless compression: what a model predicts, spent by a range coder."""
