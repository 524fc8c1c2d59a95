"""Is what belongs together found without names? Traces of independent implementations, renamed and rearranged."""
