"""A decoder-only transformer in plain PyTorch, every stage of which can be observed."""
