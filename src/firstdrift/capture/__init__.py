"""Recording what a running model computes: `scope` says what to keep, `recorder` keeps it; one folder a framework."""
