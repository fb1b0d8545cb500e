"""`python -m trainer_box.local`, which `make demo` calls: the whole loop on this machine."""

import sys

from trainer_box.entry import run

if __name__ == "__main__":
    sys.exit(run("trainer_box.demo", "interrupted; everything that was started has been stopped"))
