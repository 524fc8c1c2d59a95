"""Positions: rotations, tables of sines, and embeddings that are looked up."""
