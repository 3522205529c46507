"""SHA-RNN: its settings, blocks and model."""
