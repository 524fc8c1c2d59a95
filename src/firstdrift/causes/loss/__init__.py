"""Losses: formulas, divisors, labels."""
