"""Code that is copied into an exported folder, where it runs without this package."""
