"""``python -m tensoropt_torch.cli``: the ``tensoropt`` command of this Python."""

import sys

from tensoropt_torch.cli import main

if __name__ == "__main__":
    sys.exit(main())
