"""Prepare SavedModels for TensorFlow Serving: check their operations, and write warm-up requests."""
