"""What a run is trained on: files as tokens, and tokens in windows."""
