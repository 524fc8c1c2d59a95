"""program.jsonl: the lines of a step as they are written, read back, and repeated."""
