"""Ids to tensors; knows no files, no text, no loss."""
