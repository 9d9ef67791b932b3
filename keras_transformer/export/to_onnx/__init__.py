"""Convert pipelines to ONNX graphs."""
