"""Training a decoder from weights that are proven to be the ones that were given, with runs that can be continued."""
