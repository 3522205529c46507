"""Checkpoints released by other programs, converted to run folders."""
