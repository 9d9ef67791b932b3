"""Options of tasks, checks of arguments, and readers of users' files, which need neither Keras nor TensorFlow.

Commands check their arguments with them before they import TensorFlow.
"""
