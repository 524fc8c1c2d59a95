"""Paired tensors brought together and measured. Nothing here judges."""
