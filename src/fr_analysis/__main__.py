"""``python -m fr_analysis``."""

import sys

from fr_analysis.cli import main

sys.exit(main())
