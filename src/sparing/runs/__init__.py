"""Runs: recipes, run folders, and training from settings to results."""
