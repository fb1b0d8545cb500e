"""The models that are served have the shapes that the payload is measured on."""

import torch
from transformers import Qwen3ForCausalLM

from tests.bench import models
from tests.bench.steps import QWEN3_06B, SERVED_20M, SMALLEST, Qwen3, Shapes, elements, shapes_of


def of_transformers(size: Qwen3) -> Shapes:
    with torch.device("meta"):
        model = Qwen3ForCausalLM(models.config_of(size))
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def test_a_served_models_parameters_are_those_of_its_shapes() -> None:
    for size in (SMALLEST, SERVED_20M, QWEN3_06B):
        assert of_transformers(size) == shapes_of(size)
    assert 18e6 < elements(shapes_of(SERVED_20M)) < 20e6


def test_weights_are_bf16_in_those_shapes() -> None:
    weights = models.weights_of(SMALLEST)
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == shapes_of(SMALLEST)
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
