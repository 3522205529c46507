"""From a corpus's public home to batches of tokens. Knows no model."""
