"""Both implementations at hand: run them, run them in float64, and replay one on what the other computed."""
