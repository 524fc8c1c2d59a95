"""Checkpoints: named weights in any of the formats that models are shared in, read lazily and written whole.

Each format is a module that turns a path into a `Checkpoint`, and a writer that turns tensors into a file. Names
are those of Hugging Face wherever a format has its own.
"""
