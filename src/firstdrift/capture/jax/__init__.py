"""JAX: flax nnx, flax linen, equinox and plain functions, traced to a jaxpr and run equation by equation."""
