"""Pairs in, verdicts out: what the reference's program says of the candidate's tensors, and what follows from it."""
