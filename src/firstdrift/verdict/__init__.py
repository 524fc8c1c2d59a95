"""From measurements to verdicts: what noise explains, and what it does not."""
