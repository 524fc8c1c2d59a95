"""Norms: eps, gain, mean, axes, statistics, precision."""
