"""Benchmarks: each module has `DIALS` (names and defaults) and `run(out, **dials)`, which measures and records."""
