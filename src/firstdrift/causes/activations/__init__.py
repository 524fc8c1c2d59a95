"""Activations: which function, where it is applied, and what keeps it within limits."""
