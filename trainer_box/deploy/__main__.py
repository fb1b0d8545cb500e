"""`python -m trainer_box.deploy`: bucket and Spaces on the Hub."""

import sys

from trainer_box.entry import run

if __name__ == "__main__":
    sys.exit(
        run("trainer_box.deploy.command", "stopped; what was made is there, and the same command goes on from it")
    )
