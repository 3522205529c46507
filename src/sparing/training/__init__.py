"""Training: one loop, and what it is made of."""
