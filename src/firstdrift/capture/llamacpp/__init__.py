"""GGUF models as llama.cpp runs them."""
