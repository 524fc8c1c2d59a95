"""Errors beyond noise that are none: each is proven by a replay, or it is not said."""
