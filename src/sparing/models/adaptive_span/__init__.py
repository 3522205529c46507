"""Adaptive Span: its settings and model; all-attention and Expire-Span are settings of it."""
