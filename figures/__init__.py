"""One module per figure; each reads filters and recorded results, never torch."""
