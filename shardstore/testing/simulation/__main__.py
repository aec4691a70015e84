"""``python -m shardstore.testing.simulation``."""

import sys

from shardstore.testing.simulation.campaign import main

if __name__ == "__main__":
    sys.exit(main())
