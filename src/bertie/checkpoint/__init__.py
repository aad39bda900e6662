"""Tensors to disk and back."""
