"""Checkpoints on the volume: staged by the trainer, sealed by a manifest, chosen for a resume, pruned."""
