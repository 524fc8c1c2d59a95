"""Formats of checkpoints, one file each: what turns a path into a `Checkpoint`, and tensors into a file."""
