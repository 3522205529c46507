"""Stack: residual blocks in the order a pattern names."""
