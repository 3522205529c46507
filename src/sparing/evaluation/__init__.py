"""Evaluating a trained model: exact loss, loss against context, scores of texts."""
