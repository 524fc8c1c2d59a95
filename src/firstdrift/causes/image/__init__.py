"""Windows over images and sequences: convolutions, pools, patches, resized tables."""
