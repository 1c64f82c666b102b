"""The GPU engine: a pack of trials trained at once on one device, each one's step a CUDA graph on its own stream.

`step` is one trial's training step without a host synchronisation; `feed` a stream of batches shared by the trials
that read the same; `lane` captures and replays; `pack` trains the members together; `jobs` fills packs from a sweep's
jobs; `devices` deals jobs out to several GPUs. Without a GPU the same code runs with nothing captured.
"""
