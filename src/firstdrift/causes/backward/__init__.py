"""Gradients: of tensors and of parameters, each recomputed from what it starts from."""
