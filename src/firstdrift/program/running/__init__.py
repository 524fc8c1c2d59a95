"""What the interpreter runs calls with: dtypes, arguments, given tensors, noise."""
