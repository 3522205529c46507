"""Language models that spend attention sparingly."""

__version__ = "0.1.0"
