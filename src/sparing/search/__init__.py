"""Searching which blocks a network needs, under a measured budget (PAR)."""
