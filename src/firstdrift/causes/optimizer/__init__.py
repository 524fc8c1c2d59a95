"""Optimizers: clipping before the step, the step, and the state that it leaves."""
