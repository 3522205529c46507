"""Pictures of runs: curves from their journals, attention and context from their models."""
