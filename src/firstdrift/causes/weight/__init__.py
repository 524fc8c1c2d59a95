"""Weights: of another tensor, in another layout, or with other numbers."""
