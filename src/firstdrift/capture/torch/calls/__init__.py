"""The calls of a run, as a program: seen by modes at the bottom of torch, written down with their lines of code."""
