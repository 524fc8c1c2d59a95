"""Coarser numbers: shorter floats, and integers in place of floats."""
