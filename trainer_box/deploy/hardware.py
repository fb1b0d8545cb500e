"""What Spaces can run on, what that costs, and what a model of some size needs. Prices as of a date; nothing is asked.

A T4 is not among them: it has no bf16, and float16 cannot hold every published value.
"""

from dataclasses import dataclass

PRICES_OF = "August 2026"
FREE = "cpu-basic"


@dataclass(frozen=True)
class Hardware:
    """`gpu_gb` 0 is a machine without a GPU."""

    name: str
    gpu_gb: int
    usd_per_hour: float

    def usd(self, seconds: float) -> float:
        return self.usd_per_hour * seconds / 3600


HARDWARE = {
    each.name: each
    for each in (
        Hardware(FREE, 0, 0.0),
        Hardware("cpu-upgrade", 0, 0.03),
        Hardware("l4x1", 24, 0.80),
        Hardware("a10g-small", 24, 1.00),
        Hardware("l40sx1", 48, 1.80),
        Hardware("a100-large", 80, 2.50),
    )
}
WITH_GPU = tuple(name for name, each in HARDWARE.items() if each.gpu_gb)


@dataclass(frozen=True)
class Model:
    """A model that was thought of: `parameters` as the checkpoint has them, and the smallest Space that serves it."""

    name: str
    parameters: int
    hardware: str


DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
MODELS = (
    Model(DEFAULT_MODEL, 596_049_920, "l4x1"),
    Model("Qwen/Qwen3-1.7B", 1_720_574_976, "l4x1"),
    Model("Qwen/Qwen3-4B", 4_022_468_096, "l4x1"),
    Model("Qwen/Qwen3-8B", 8_190_735_360, "l40sx1"),
)


def hardware_for(model: str) -> str:
    """The Space hardware that is asked for unless another is named; the smallest GPU for a model not in the list."""
    return next((known.hardware for known in MODELS if known.name == model), "l4x1")
