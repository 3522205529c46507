"""ONNX: two graphs, an example that runs them, and the check that they answer as the model does."""
