"""Runs: where settings meet objects."""
