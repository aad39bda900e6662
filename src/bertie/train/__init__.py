"""(model, batches, objective) -> trained model."""
