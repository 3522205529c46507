"""The stack: its settings, patterns and model."""
