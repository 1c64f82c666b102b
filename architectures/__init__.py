"""Sequence models: mixers, stacks, hybrids and their exact accounting."""
