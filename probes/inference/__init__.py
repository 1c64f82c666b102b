"""Latency and memory of prefill and decoding against context length, with the bound of each figure."""
