"""Tensors <-> disk."""
