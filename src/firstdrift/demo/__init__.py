"""The keyword spotter of the demo: a network of 17 layers in PyTorch, and its port to plain C.

`*.c` and `kws.h` are the port, `twin.py` is the original, `probes.txt` names the layers for both.
"""
