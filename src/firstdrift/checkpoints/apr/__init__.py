"""APR containers, version 2: a header, JSON metadata, a sorted index, aligned tensors, and two checksums."""
