"""Run the command line as `python -m keras_transformer_cli`."""

import sys

from keras_transformer_cli import main

sys.exit(main())
