"""``python -m dualwrite`` is the ``dualwrite`` command."""

import sys

from dualwrite.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
