"""Operations computed once more, in float64, from what two traces recorded: what each site itself got wrong.

Imports point one way: `operation` says what an operation is; `dense`, `normalisation`, `activations`, `pooling`,
`moving` and `recurrent` are the library; `guesses` names those that may have made a tensor. `sources` reads tensors,
`replayable` says how one is computed from others, and `fitting` finds that for the forward pass, `backward` for
gradients, `steps` for updates. `shadow` measures; `isolation` tells it of one module, `excerpt` cuts one out.
"""
