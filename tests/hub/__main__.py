"""The stand-in as a process. HF_TOKEN, where it is set, is the token that it asks for."""

import argparse
import os
from pathlib import Path

from tests.hub.app import StandInHub
from tests.hub.running import server_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hub", description=__doc__)
    parser.add_argument("--port", type=int, default=os.environ.get("PORT"), help="on 127.0.0.1; default: PORT")
    parser.add_argument("--folder", type=Path, required=True, help="where it keeps its files, for good")
    arguments = parser.parse_args()
    server_of(StandInHub(arguments.folder, os.environ.get("HF_TOKEN")), arguments.port).run()


if __name__ == "__main__":
    main()
