"""The library of operations: what names and settings mean, as formulas."""
