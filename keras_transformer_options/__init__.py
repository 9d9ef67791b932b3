"""Options and the checks of arguments; imports neither Keras nor TensorFlow, so that a command checks them at once."""
