"""The weights of a run, step by step: whoever knows the seed knows them all."""

from shared import fingerprint
from tests.space_vllm.tiny import Weights, partly_changed, random_weights

_SEEDS = 100_000  # between the seeds of two runs


def first(seed: int) -> Weights:
    return random_weights(seed * _SEEDS, tied=True)


def following(weights: Weights, seed: int, step: int) -> Weights:
    """What `step` makes of the weights of the step before."""
    changed = partly_changed(dict(sorted(weights.items())), seed * _SEEDS + step)  # which draws in the given order
    return {name: changed[name] for name in weights}


class Story:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._steps = [first(seed)]

    def weights(self, step: int) -> Weights:
        while len(self._steps) <= step:
            self._steps.append(following(self._steps[-1], self.seed, len(self._steps)))
        return self._steps[step]

    def known(self, steps: int) -> dict[str, Weights]:
        """The weights of the first steps, by fingerprint."""
        told = [self.weights(step) for step in range(steps)]
        return {fingerprint.to_text(fingerprint.fingerprint(weights)): weights for weights in told}
