"""The command line of `python -m trainer_box.deploy`, and in which order things are done.

Tokens come from the environment only: HF_TOKEN makes everything and is the trainer's; SPACE_HF_TOKEN is the read token
that the vLLM Space gets. What already is as it should be is left alone.
"""

import argparse
import logging
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import stamina.instrumentation
from stamina.instrumentation import RetryDetails

from shared.bucket.private import ensure_private, is_readable
from shared.errors import SyncError
from shared.identity import ENV_SPACE, VLLM_SPACE
from shared.output import complain, say
from trainer_box.deploy import keys, plan, tokens
from trainer_box.deploy.apply import apply
from trainer_box.deploy.failures import READER_REMEDIES, TOKENS
from trainer_box.deploy.hardware import DEFAULT_MODEL, PRICES_OF, WITH_GPU, hardware_for
from trainer_box.deploy.hub import Hub
from trainer_box.deploy.plan import NEVER, SLEEP_S, Plan
from trainer_box.deploy.staging import check_known_to_git
from trainer_box.deploy.waiting import Waiting

_DEADLINE_S = 3600.0
_SLEEP_S = range(60, 30 * 24 * 3600 + 1)
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_MODEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer_box.deploy", description="Bucket and Spaces on the Hub.")
    parser.add_argument("--namespace", type=_namespace, required=True, help="the user or organisation they belong to")
    parser.add_argument("--model", type=_model, default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    smallest = "the smallest for the model, or what it has when that is larger"
    parser.add_argument("--hardware", choices=WITH_GPU, help=f"of the vLLM Space; default: {smallest}")
    parser.add_argument(
        "--sleep-time", type=_sleep_time, default=SLEEP_S, help="seconds without a request; -1: never sleep"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--smoke", action="store_true", help="then check both Spaces with a few requests")
    what.add_argument("--template", action="store_true", help="public source Spaces, for others to duplicate")
    parser.add_argument("--dry-run", type=Path, metavar="DIR", help="write what would be pushed, and push nothing")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = command_line().parse_args(argv)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # that nothing changed is said here
    stamina.instrumentation.set_on_retry_hooks([_tell_retry])
    try:
        run(arguments)
    except SyncError as error:
        complain(f"error: {error}")
        return 1
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Raises SyncError."""
    planned = _planned(arguments)
    for space in planned.spaces:
        check_known_to_git(space.unit)
    if arguments.dry_run:
        plan.write(planned, arguments.dry_run)
        say(f"{arguments.dry_run} holds the two Spaces as they would be pushed, and {plan.PLAN}; nothing was pushed")
        return
    hub = Hub(token := tokens.writer(os.environ))
    if planned.bucket is None:
        tokens.check_writer(hub.account(), arguments.namespace)
        for space in planned.spaces:
            apply(space, planned.model, hub, {}, say)
        say(how_to_duplicate(planned))
    else:
        _deploy(planned, planned.bucket, hub, token, arguments.smoke)


def how_to_duplicate(planned: Plan) -> str:
    flavor = hardware_for(planned.model)
    vllm, env = planned.vllm.repo_id, planned.env.repo_id
    return (
        "to duplicate them:\n"
        f"    printf 'HF_TOKEN=%s\\n' \"$SPACE_HF_TOKEN\" | hf repos duplicate {vllm} {VLLM_SPACE} --type space "
        f"--private --flavor {flavor} --sleep-time {SLEEP_S} --secrets-file - -s VLLM_API_KEY\n"
        f"    hf repos duplicate {env} {ENV_SPACE} --type space --private -s ENV_API_KEY"
    )


def how_to_train(planned: Plan, vllm_url: str, env_url: str, kept: Path) -> str:
    """To be copied: the keys are read from their file, HF_TOKEN is there already."""
    source = f"set -a; . {shlex.quote(str(kept))}; set +a\n    " if kept.exists() else ""
    command = shlex.join(
        [sys.executable, "-m", "trainer_box", "--model", planned.model, "--bucket", str(planned.bucket)]
    )
    where = shlex.join(["--vllm-url", vllm_url, "--env-url", env_url])
    return f"to train:\n    {source}{command} \\\n        {where}"


def _planned(arguments: argparse.Namespace) -> Plan:
    if arguments.template:
        return plan.template(arguments.namespace, arguments.model)
    return plan.deployment(arguments.namespace, arguments.model, arguments.hardware, arguments.sleep_time)


def _deploy(planned: Plan, bucket: str, hub: Hub, token: str, smoke_too: bool) -> None:
    read_token, kept = tokens.reader(os.environ, token), keys.place_of(planned.namespace)
    tokens.check_writer(hub.account(), planned.namespace)
    tokens.check_reader(Hub(read_token).account("SPACE_HF_TOKEN", READER_REMEDIES))
    say(f"the Spaces cost {planned.usd_per_hour:.2f} USD per hour while they run (prices of {PRICES_OF})")
    if smoke_too:
        say(plan.smoke_cost(planned))
    secrets = {**keys.load_or_make(kept, os.environ, say), "SPACE_HF_TOKEN": read_token}
    made = ensure_private(bucket, token)
    say(f"bucket {bucket}: {'made, private' if made else 'it is there, private'}")
    if not is_readable(bucket, read_token):
        raise SyncError(f"SPACE_HF_TOKEN may not read bucket {bucket}; give it read access to it at {TOKENS}")
    applied = [apply(space, planned.model, hub, secrets, say) for space in planned.spaces]
    waiting = Waiting(hub, token, _DEADLINE_S, say, secrets)
    vllm_url, env_url = (waiting.until_healthy(*each) for each in zip(planned.spaces, applied, strict=True))
    if smoke_too:
        from trainer_box.deploy import smoke  # brings OpenEnv along, which takes seconds

        os.environ.update({name: secrets[name] for name in keys.NAMES})
        smoke.check(vllm_url, env_url, planned.model, say)
    say(how_to_train(planned, vllm_url, env_url, kept))


def _tell_retry(details: RetryDetails) -> None:
    say(f"{details.caused_by}; trying again")


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a user or an organisation")
    return text


def _model(text: str) -> str:
    """The Space loads it from the Hub, so that a folder of this machine is of no use to it."""
    if not _MODEL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a model on the Hub, such as {DEFAULT_MODEL}")
    return text


def _sleep_time(text: str) -> int:
    try:
        seconds = int(text)
    except ValueError:
        seconds = 0
    if seconds != NEVER and seconds not in _SLEEP_S:
        limits = f"{_SLEEP_S[0]} to {_SLEEP_S[-1]} seconds"
        raise argparse.ArgumentTypeError(f"{text!r} is not {limits}, or {NEVER}, with which it never sleeps")
    return seconds
