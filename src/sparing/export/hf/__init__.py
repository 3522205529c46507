"""Hugging Face: a folder that Transformers loads without this package."""
