"""What noise may be where no program says how a tensor was made: by its dtype, kind of operation and shapes."""
