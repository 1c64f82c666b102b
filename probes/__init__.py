"""Tasks with exact baselines, the training and scoring of small models on them, and the command line."""
