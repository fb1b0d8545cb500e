"""`python -m trainer_box`: the trainer script."""

import sys

from trainer_box.entry import run

if __name__ == "__main__":
    sys.exit(run("trainer_box.script", "interrupted"))
