"""`python -m trainer_box.local`, which `make demo` calls: the demo, with Ctrl-C in one sentence from the first moment.

The demo's imports take seconds, so they are inside. Knows nothing else of it.
"""

import sys

INTERRUPTED = 130


def main() -> int:
    try:
        from trainer_box.demo import main as demo

        return demo()
    except KeyboardInterrupt:
        print("interrupted; everything that was started has been stopped", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
