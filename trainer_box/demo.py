"""The whole loop on this machine: environment, vLLM and trainer as processes that talk as across the internet.

It starts the units on free ports with fresh keys, shows what happens, judges the outcome, and
stops everything it started, however it ends.
"""

import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Literal

from rich.console import Console
from transformers import HfArgumentParser
from transformers.utils.logging import disable_progress_bar

from shared.errors import SyncError
from shared.learning import LEAST_STEPS
from shared.types import Json
from trainer_box import picture, report
from trainer_box.evaluate import EVALUATION_SEEDS
from trainer_box.judge import Judge
from trainer_box.processes import LOOPBACK, Units, check_port, free_port
from trainer_box.tiny_policy import tiny_policy_path
from trainer_box.watch import watch

_CHECKOUT = str(Path(__file__).resolve().parents[1])
_FREE_BYTES = 500_000_000
_START_S = 300.0
_FEW = 32  # games, after a run that is too short to be judged
_QUIET = {"GRADIO_ANALYTICS_ENABLED": "0", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # threads that wait for each other by spinning starve vLLM on a small machine
_TRAINING = (
    "--environment=trainer_box.environment:TinyWordle",
    "--per-device-train-batch-size=32",
    "--num-generations=8",
    "--max-completion-length=16",
    "--warmup-steps=8",
    "--adam-beta2=0.99",
    "--token-budget=0",
    "--max-staleness=2",
    "--max-inflight-tasks=64",
    "--weight-sync-timeout=120",
    '--chat-template-kwargs={"enable_thinking": false}',
)


@dataclass
class DemoArguments:
    """make demo DEMO_ARGS="..." """

    steps: int = field(default=60, metadata={"help": "Training steps; under 40 the demo does not judge learning."})
    seed: int = field(default=0, metadata={"help": "Seed of the trainer."})
    temperature: float = field(default=1.0, metadata={"help": "Sampling temperature of the rollouts."})
    learning_rate: float = field(default=2e-4, metadata={"help": "0 is the frozen control."})
    port: int = field(default=7860, metadata={"help": "Port of the monitor."})
    keep: bool = field(default=False, metadata={"help": "Leave everything running at the end, until Ctrl-C."})
    no_ui: bool = field(default=False, metadata={"help": "Run without the monitor."})
    bucket: Literal["local", "stand-in"] = field(
        default="local", metadata={"help": "A folder, or a stand-in for the Hub that the Hub's real clients talk to."}
    )


@dataclass(frozen=True)
class Fleet:
    """Where the units are."""

    run_id: str
    folder: Path
    model: str
    bucket: str
    env_url: str
    vllm_url: str
    hub_url: str | None
    """The stand-in's; None without one."""


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    disable_progress_bar()
    try:
        return run(_arguments(), Console())
    except SyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _arguments() -> DemoArguments:
    arguments: DemoArguments
    try:
        (arguments,) = HfArgumentParser(DemoArguments).parse_args_into_dataclasses()
    except ValueError as error:
        raise SyncError(f"the arguments cannot be used: {error}; see --help") from error
    return arguments


def run(arguments: DemoArguments, console: Console) -> int:
    """Exit code 0 when every version verified and the loop learned, as far as it can be told; else 1."""
    seconds: dict[str, float] = {}
    fleet = _plan(arguments)
    with Units(fleet.folder) as units:
        with _timed(seconds, "start"):
            _start(arguments, fleet, units, console)
        seeds = EVALUATION_SEEDS if arguments.steps >= LEAST_STEPS else EVALUATION_SEEDS[:_FEW]
        judge = Judge(fleet.vllm_url, fleet.env_url, fleet.model, fleet.bucket, fleet.run_id)
        with _timed(seconds, "play before"), console.status("greedy games before training"):
            before = judge.play(seeds)
        with _timed(seconds, "train"):
            steps = _train(arguments, fleet, units, console)
        with _timed(seconds, "compare"), console.status("comparing the served policy with the bucket's"):
            verdict = judge.compare(arguments.temperature)
        with _timed(seconds, "play after"), console.status("greedy games after training"):
            after = judge.play(seeds)
        outcome = report.summarise(
            steps,
            {
                "run_id": fleet.run_id,
                "arguments": vars(arguments),
                **verdict,
                "greedy_solve_rate": {"games": len(seeds), "before": before.solve_rate, "after": after.solve_rate},
                "seconds": seconds,
            },
            fleet.folder,
        )
        report.show(console, outcome, fleet.folder)
        console.print(f"picture: {picture.draw(outcome, fleet.folder)}", highlight=False, soft_wrap=True)
        if arguments.keep:
            console.print("everything is left running; Ctrl-C stops it")
            signal.pause()
    return 0 if report.succeeded(outcome) else 1


def _plan(arguments: DemoArguments) -> Fleet:
    """Choose names and free ports. Raises SyncError where the demo could not run."""
    if arguments.steps < 1:
        raise SyncError(f"--steps {arguments.steps} is not possible; train for at least one step")
    if not arguments.no_ui:
        check_port(arguments.port, "--port")
    stand_in = arguments.bucket == "stand-in"
    if stand_in:
        _check_stand_in()
    run_id = f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = Path("runs", run_id).resolve()
    try:
        (folder if stand_in else folder / "bucket").mkdir(parents=True)
    except OSError as error:
        raise SyncError(f"{folder} cannot be made: {error.strerror}; run this where you may write") from error
    free = shutil.disk_usage(folder).free
    if free < _FREE_BYTES:
        raise SyncError(f"only {free / 1e6:.0f} MB are free in {folder}; the demo needs {_FREE_BYTES / 1e6:.0f} MB")
    return Fleet(
        run_id=run_id,
        folder=folder,
        model=str(tiny_policy_path()),
        bucket=f"demo/{run_id}" if stand_in else f"local:{folder / 'bucket'}",
        env_url=f"http://{LOOPBACK}:{free_port()}",
        vllm_url=f"http://{LOOPBACK}:{free_port()}",
        hub_url=f"http://{LOOPBACK}:{free_port()}" if stand_in else None,
    )


def _check_stand_in() -> None:
    """Raises SyncError where the stand-in is not, or this process may not ask it."""
    if not Path(_CHECKOUT, "tests", "hub").is_dir():
        raise SyncError(
            "--bucket stand-in starts tests.hub, which only a checkout of the repository has; run it there"
        )
    if os.environ.get("HF_HUB_OFFLINE", "0") != "0":
        raise SyncError("--bucket stand-in is asked as the Hub is, and HF_HUB_OFFLINE forbids that; unset it")


def _start(arguments: DemoArguments, fleet: Fleet, units: Units, console: Console) -> None:
    """Start the units that wait to be used; all of them, and the trainer, read the same fresh keys."""
    os.environ.update(_QUIET, HOST=LOOPBACK, BUCKET=fleet.bucket, RUN_ID=fleet.run_id, MODEL=fleet.model)
    os.environ.update(VLLM_API_KEY=secrets.token_urlsafe(32), ENV_API_KEY=secrets.token_urlsafe(32))
    os.environ.pop("SERVED_MODEL_NAME", None)
    _start_hub(fleet, units, console)
    addresses = {"environment": fleet.env_url, "vllm": fleet.vllm_url}
    modules = {"environment": "space_env.serve", "vllm": "space_vllm.serve"}
    if not arguments.no_ui:
        addresses["monitor"] = f"http://{LOOPBACK}:{arguments.port}"
        modules["monitor"] = "shared.monitor"
    for name, module in modules.items():
        watched = [f"--bucket={fleet.bucket}", f"--vllm-url={fleet.vllm_url}", f"--env-url={fleet.env_url}"]
        units.start(name, module, watched if name == "monitor" else [], {"PORT": addresses[name].rsplit(":", 1)[1]})
    with console.status("starting") as status:
        for name, address in addresses.items():
            units[name].wait_until_healthy(f"{address}/health", _START_S, status.update)
    for name, address in addresses.items():
        console.print(f"{name} is ready at {address}")


def _start_hub(fleet: Fleet, units: Units, console: Console) -> None:
    """Start the stand-in, and let what comes after, in this process too, take it for the Hub; else forbid the Hub."""
    os.environ["HF_HUB_OFFLINE"] = "0" if fleet.hub_url else "1"
    if fleet.hub_url is None:
        return
    os.environ.update(HF_ENDPOINT=fleet.hub_url, HF_TOKEN=f"hf_{secrets.token_hex(16)}")
    os.environ.update(HF_XET_CACHE=str(fleet.folder / "xet"))  # what was uploaded to another Hub is of no use here
    port = fleet.hub_url.rsplit(":", 1)[1]
    hub = units.start(
        "hub", "tests.hub", [f"--folder={fleet.folder / 'hub'}"], {"PORT": port, "PYTHONPATH": _CHECKOUT}
    )
    hub.wait_until_healthy(f"{fleet.hub_url}/health", _START_S, lambda progress: None)
    console.print(f"hub is ready at {fleet.hub_url}")


def _train(arguments: DemoArguments, fleet: Fleet, units: Units, console: Console) -> list[Json]:
    trainer = units.start(
        "trainer",
        "trainer_box",
        [
            f"--vllm-url={fleet.vllm_url}",
            f"--env-url={fleet.env_url}",
            f"--output-dir={fleet.folder}",
            f"--max-steps={arguments.steps}",
            f"--seed={arguments.seed}",
            f"--temperature={arguments.temperature}",
            f"--learning-rate={arguments.learning_rate}",
            *_TRAINING,
        ],
        _ONE_THREAD,
    )
    steps = watch(units, trainer, fleet.folder, arguments.steps, console)
    if trainer.exit_code != 0:
        raise SyncError(trainer.obituary())
    return steps


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[phase] = round(time.perf_counter() - started, 2)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
