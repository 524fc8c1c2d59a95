"""Mixtures of experts: the router, the experts, and their sum."""
