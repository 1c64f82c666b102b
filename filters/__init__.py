"""Exact inference for two-timescale hidden Markov models; NumPy is the definition."""
