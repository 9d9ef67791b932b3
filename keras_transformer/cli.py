"""The command line as `python -m keras_transformer.cli`.

The program `keras-transformer` imports only `keras_transformer_cli`, so that its help does not wait for Keras.
"""

import sys

from keras_transformer_cli import main as main

if __name__ == "__main__":
    sys.exit(main())
