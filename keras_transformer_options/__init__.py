"""Options of tasks, checks of arguments, and readers of users' files, which need neither Keras nor TensorFlow.

A command checks with them all that it is given before it imports TensorFlow.
"""
