"""Fine-tuning tasks: files to examples, to batches, to losses; logits to answers, to scores."""
