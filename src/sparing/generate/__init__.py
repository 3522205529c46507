"""Letting a trained model write: sampling, decoding, text."""
