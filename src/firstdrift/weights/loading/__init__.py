"""Weights into models: every number arrives, proven, or nothing changes; and what a checkpoint says of its model."""
