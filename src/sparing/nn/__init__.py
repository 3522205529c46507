"""Modules built from plain numbers, never from a model's config."""
