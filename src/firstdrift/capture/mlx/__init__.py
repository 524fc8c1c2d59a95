"""MLX models."""
