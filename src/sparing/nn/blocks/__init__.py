"""Residual branches that can be stacked in any order; one file per kind."""
