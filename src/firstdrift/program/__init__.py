"""The program of a run: the calls that made its tensors, written beside them, read back, and run again."""
