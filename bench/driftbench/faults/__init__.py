"""What can be wrong beside the code of a model: loaded weights, losses, gradients, optimizers."""
