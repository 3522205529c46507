"""The models as a service: one engine per model, an HTTP interface and a page in front of it."""
