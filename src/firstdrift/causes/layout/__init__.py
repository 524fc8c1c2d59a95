"""Layouts: axes, slices and blocks in another order."""
