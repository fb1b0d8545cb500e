"""A real vLLM server on the CPU follows published weights, refuses bad updates, and serves on meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from shared import layout
from shared.bucket import open_bucket
from shared.types import Base
from tests.space_vllm.fakes import publisher
from tests.space_vllm.live_server import Server, both_dtypes, in_float32
from tests.space_vllm.tiny import (
    VOCABULARY,
    Weights,
    base_weights,
    live_checksums,
    log_probabilities,
    partly_changed,
    random_weights,
)
from trainer_box.publisher import Publisher

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

PROMPT = list(range(7, 31))
# Mean difference of log-probabilities. Another version's are more than ten times as far away.
TOLERANCE = {"float32": 0.01, "bfloat16": 0.08}


def distance(server: Server, weights: Weights) -> float:
    """How far the server's log-probabilities of its own answer are from those of `weights`."""
    tokens, found = server.complete(PROMPT, 16)
    return float((torch.tensor(found) - log_probabilities(weights, server.dtype, PROMPT, tokens)).abs().mean())


@both_dtypes
def test_logits_follow_the_published_weights(server: Server) -> None:
    versions = [random_weights(1, server.tied)]
    for seed in range(2, 5):
        versions.append(partly_changed(versions[-1], seed))
    with publisher(server.bucket, f"logits-{server.dtype}") as out:
        published = [out.publish(weights.items()) for weights in versions]
    assert [manifest.kind for manifest in published] == ["anchor", "delta", "delta", "delta"]
    for index in (0, 1, 3):
        status, answer = server.update(published[index])
        assert (status, answer["version"]) == (200, index), answer
        tolerance = TOLERANCE[server.dtype]
        assert distance(server, versions[index]) < tolerance
        assert distance(server, versions[index - 1]) > 10 * tolerance
    answer = server.status()
    assert (answer["version"], answer["fingerprint"]) == (3, published[3].fingerprint)
    assert (answer["dtype"], answer["logprobs_mode"]) == (server.dtype, "processed_logprobs")
    assert answer["served_model_names"] == ["tiny"]


@in_float32
def test_refused_updates_leave_the_old_weights_served_and_the_next_good_one_goes_through(server: Server) -> None:
    old, new = random_weights(11, server.tied), random_weights(12, server.tied)
    with publisher(server.bucket, "refusals") as out:
        server.update(out.publish(old.items()))
        delta = out.publish(partly_changed(old, 13).items())
    refusals: dict[str, tuple[int, Callable[[], tuple[int, Any]]]] = {
        "no key": (401, lambda: server.update(delta, key="")),
        "foreign bucket": (403, lambda: server.update(delta, repo_id="someone/else")),
        "unknown run": (409, lambda: server.update(delta, run_id="no-such-run")),
        "unknown version": (409, lambda: server.update(delta, version=7)),
        "unknown file": (409, lambda: server.update(delta, filename="refusals/deltas/step_000007.safetensors")),
        "damaged file": (409, lambda: server.update(delta)),
    }
    file = server.bucket / delta.path
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    assert {name: call()[0] for name, (_, call) in refusals.items()} == {k: v[0] for k, v in refusals.items()}
    assert server.checksums() == live_checksums(old, server.dtype)
    assert distance(server, old) < TOLERANCE["float32"]
    with publisher(server.bucket, "refusals") as out:
        assert server.update(out.publish(new.items()))[0] == 200
    assert distance(server, new) < TOLERANCE["float32"]


@in_float32
def test_a_delta_on_another_base_is_refused_and_an_anchor_helps(server: Server) -> None:
    weights = [random_weights(41, server.tied)]
    weights += [partly_changed(weights[0], 42), partly_changed(weights[0], 43)]
    with publisher(server.bucket, "other-base") as out:
        server.update(out.publish(weights[0].items()))
        delta = out.publish(weights[1].items())
    file = server.bucket / layout.manifest(delta.run_id, 1)
    manifest = file.read_bytes()
    file.write_bytes(replace(delta, base_fingerprint="0" * 16).to_json())
    status, answer = server.update(delta)
    assert (status, answer["need"], answer["served_version"]) == (409, "anchor", 0)
    assert "delta 1 is based on version 0 with fingerprint 0000000000000000" in answer["error"]
    assert server.checksums() == live_checksums(weights[0], server.dtype)
    file.write_bytes(manifest)
    with publisher(server.bucket, "other-base") as out:
        anchor = out.publish(weights[2].items())
    status, answer = server.update(anchor)
    assert (status, answer["kind"]) == (200, "anchor")
    assert server.checksums() == live_checksums(weights[2], server.dtype)


@in_float32
def test_missed_versions_are_caught_up_in_the_order_of_their_bases(server: Server) -> None:
    weights = [random_weights(51, server.tied)]
    with publisher(server.bucket, "missed") as out:
        server.update(out.publish(weights[0].items()))
        for seed in range(52, 56):
            weights.append(partly_changed(weights[-1], seed))
            newest = out.publish(weights[-1].items())
    before = server.status()["counters"]
    status, answer = server.update(newest)
    assert (status, answer["version"], answer["kind"]) == (200, 4, "delta")
    after = server.status()["counters"]
    assert (after["syncs"] - before["syncs"], after["failed"] - before["failed"]) == (4, 0)
    assert server.checksums() == live_checksums(weights[-1], server.dtype)


@both_dtypes
def test_a_second_run_from_the_base_model_takes_no_restart_and_no_bytes(server: Server) -> None:
    name, weights = f"from-base-{server.dtype}", base_weights(server.tied)
    with publisher(server.bucket, f"before-{server.dtype}") as out:
        assert server.update(out.publish(random_weights(61, server.tied).items()))[0] == 200
        base = Base("the/model", fingerprint=out.count(weights.items()))
    before = server.status()["counters"]
    with Publisher(open_bucket(f"local:{server.bucket}"), name, base=base) as out:
        first = out.publish(weights.items())
        assert (first.version, first.kind, first.path, first.nbytes) == (0, "anchor", "", 0)
        status, answer = server.update(first)
        assert (status, answer["version"]) == (200, 0), answer
        after = server.status()
        assert (after["run_id"], after["fingerprint"]) == (name, first.fingerprint)
        assert after["counters"]["payload_bytes"] == before["payload_bytes"]
        assert after["counters"]["lost"] == before["lost"]
        assert server.checksums() == live_checksums(weights, server.dtype)
        changed = partly_changed(weights, 62)
        assert server.update(out.publish(changed.items()))[0] == 200
    assert server.checksums() == live_checksums(changed, server.dtype)


@in_float32
def test_a_request_in_flight_goes_on_across_a_sync(server: Server) -> None:
    with publisher(server.bucket, "in-flight") as out:
        weights = random_weights(21, server.tied)
        server.update(out.publish(weights.items()))
        manifest = out.publish(partly_changed(weights, 22).items())
    stream = server.stream(PROMPT, 950)
    tokens = next(stream)
    assert server.update(manifest)[0] == 200
    for more in stream:
        tokens += more
    assert len(tokens) == 950
    assert all(0 <= token < VOCABULARY for token in tokens)
    assert server.status()["last_sync"]["reprefilled"] == 1


@in_float32
def test_vllms_own_routes_are_closed_except_the_openai_api(server: Server) -> None:
    paths = ("/docs", "/invocations", "/tokenize", "/inference/v1/generate", "/pause", "/collective_rpc", "/ping")
    assert {path: server.call(path)[0] for path in paths} == dict.fromkeys(paths, 404)
    assert server.call("/v1/models", key="wrong")[0] == 401
    assert server.call("/v1/models")[1]["data"][0]["id"] == "tiny"
