"""A model directory → what other programs run: ONNX, torch.export, plain Hugging Face."""
