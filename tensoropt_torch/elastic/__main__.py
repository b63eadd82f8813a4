"""The command ``python -m tensoropt_torch.elastic --processes 1:4 train.py``."""

import sys

from tensoropt_torch.elastic.launch import main

if __name__ == "__main__":
    sys.exit(main())
