"""Attention modules, each with its residual block."""
