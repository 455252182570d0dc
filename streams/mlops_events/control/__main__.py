"""python -m mlops_events.control"""

import sys

from mlops_events.control.cli import main

if __name__ == "__main__":
    sys.exit(main())
