"""The reference's program on the candidate's tensors: what a site should hold, and the noise of holding it."""
