"""ONNX models as ONNX Runtime runs them."""
