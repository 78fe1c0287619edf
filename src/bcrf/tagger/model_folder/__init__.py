"""The folder of a trained model: write and read its safetensors and JSON, with size limits."""
