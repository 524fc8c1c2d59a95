"""What two tensors have to do with each other, without a program: values, places, calls, many tensors at once."""
