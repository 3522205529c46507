"""Text generation: sampling, decoding, streaming text."""
