"""Experiments: variants times seeds, each trained by a process of its own."""
