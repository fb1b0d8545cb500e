"""The arguments of the trainer script that are not TRL's own."""

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass
class ScriptArguments:
    """What to train, on what, and where the other units are. All of TRL's training arguments are accepted as well."""

    model: str = field(
        default="", metadata={"help": "Model id or folder, as the vLLM Space serves it; default $MODEL."}
    )
    vllm_url: str = field(default="http://127.0.0.1:8000", metadata={"help": "The vLLM Space."})
    env_url: str = field(default="", metadata={"help": "The environment Space, given to --environment's class."})
    bucket: str = field(default="", metadata={"help": "`user/name` on the Hub or `local:/path`; default $BUCKET."})
    run_id: str = field(default="", metadata={"help": "Name of the run; default $RUN_ID, else the time of start."})
    resume: bool = field(default=False, metadata={"help": "Go on from the newest checkpoint of --run-id."})
    environment: str = field(
        default="trainer_box.environment:Wordle", metadata={"help": "Environment class, as package.module:Class."}
    )
    reward: str = field(
        default="", metadata={"help": "Reward function beside the environment's own, as package.module:function."}
    )
    dataset: str = field(
        default="trainer_box.environment:dataset",
        metadata={"help": "package.module:function, or a dataset's id or folder, with a column `prompt`."},
    )

    pause_spaces_at_end: bool = field(
        default=False, metadata={"help": "Pause the Spaces when training has ended, however it ended: they cost."}
    )

    def __post_init__(self) -> None:
        self.model = self.model or os.environ.get("MODEL", "")
        self.bucket = self.bucket or os.environ.get("BUCKET", "")
        self.run_id = self.run_id or os.environ.get("RUN_ID", "") or f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}"
