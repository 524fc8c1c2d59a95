"""Sums between modules: which terms there are, and which are missing or too many."""
