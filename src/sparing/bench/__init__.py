"""Benchmarks: how long things take, how much they hold, on which machine and by which code."""
