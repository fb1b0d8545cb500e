"""Pausing Spaces at the end of a run, so that they cost nothing more. A pause that fails is told, and is no error."""

from collections.abc import Sequence

from shared.errors import SyncError
from shared.health import Report
from trainer_box.deploy.hub import Hub


def pause(spaces: Sequence[str], token: str | None, report: Report) -> None:
    if not spaces:
        report("no Space is paused: the units tell of none (SPACE_ID)")
    for space in spaces:
        try:
            Hub(token).pause(space)
        except SyncError as error:
            report(f"{space} goes on and costs: {error}; pause it with hf spaces pause {space}")
        else:
            report(f"{space} is paused; hf spaces restart {space} starts it again")
