"""Recording `torch.nn.Module`s.

Imports point one way: `values` and `names` know tensors and modules; `producers` and `losses` read the autograd
graph; `hooks` is the one place that touches torch's global state; `forward`, `backward` and `updates` record their
phases; `session` ties them to steps; `ops`, `verification`, `estimating` and `sinks` stand on top.
"""
