"""Tests of the measurement kernels."""
