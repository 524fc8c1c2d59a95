"""Pairs without names: by what runs compute, hold, return and read."""
