"""The rows of the table, in their order: a scenario each, in one or both kinds of buckets.

A scenario makes one thing happen, and its docstring says what. What follows is the same for all: the trainer goes on
until a newer version is served, then bucket, Space and clients' answers are looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults import of_buckets, of_spaces, of_trainers
from tests.faults.clients import asking
from tests.faults.places import Kind
from tests.faults.scene import Outcome, Scene, scene
from tests.faults.stage import Stage

FOLDER: Kind = "folder"
HUB: Kind = "stand-in Hub"


@dataclass(frozen=True)
class Row:
    """`is_short`: played in every run of the suite."""

    scenario: Callable[[Scene], None]
    kind: Kind
    is_short: bool = False

    @property
    def name(self) -> str:
        return self.scenario.__name__.replace("_", "-")

    @property
    def text(self) -> str:
        return " ".join((self.scenario.__doc__ or "").split())


ROWS = (
    Row(of_trainers.trainer_killed_in_an_upload, HUB),
    Row(of_trainers.trainer_killed_before_a_manifest, FOLDER),
    Row(of_trainers.trainer_killed_before_a_manifest, HUB),
    Row(of_trainers.trainer_killed_in_the_post, FOLDER),
    Row(of_trainers.trainer_killed_in_the_post, HUB, is_short=True),
    Row(of_trainers.trainer_stopped_in_an_upload, HUB),
    Row(of_trainers.trainer_away, FOLDER),
    Row(of_trainers.second_publisher_on_the_host, FOLDER),
    Row(of_trainers.second_publisher_on_the_host, HUB),
    Row(of_trainers.second_publisher_elsewhere, HUB),
    Row(of_spaces.vllm_killed_while_staging, FOLDER),
    Row(of_spaces.vllm_killed_while_staging, HUB),
    Row(of_spaces.vllm_killed_while_applying, FOLDER),
    Row(of_spaces.vllm_killed_while_applying, HUB, is_short=True),
    Row(of_spaces.worker_stopped_while_applying, FOLDER),
    Row(of_spaces.space_away, HUB),
    Row(of_spaces.answers_cut, HUB),
    Row(of_spaces.disk_full, FOLDER),
    Row(of_spaces.disk_full, HUB),
    Row(of_buckets.bucket_slow, HUB),
    Row(of_buckets.bucket_refuses, HUB),
    Row(of_buckets.bucket_truncates, HUB),
    Row(of_buckets.bucket_loses_a_delta, HUB, is_short=True),
    Row(of_buckets.bucket_lists_late, HUB),
)


def play(row: Row, stage: Stage, tell: Callable[[str], None] = print) -> Outcome:
    """Raises AssertionError where nothing can be told of what a row asks, such as a Space that does not come back."""
    with scene(stage) as played, asking(stage.server) as asked:
        tell(f"{row.name}, {row.kind}: version 1 is served")
        row.scenario(played)
        played.recovers()
        tell(f"{row.name}, {row.kind}: a newer version is served after {played.seconds:.0f} s")
        return played.ends(asked)
