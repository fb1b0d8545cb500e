"""The models that are served have the shapes that the payload is measured on."""

from tests.bench import models, steps


def test_a_served_models_parameters_are_those_of_its_shapes() -> None:
    assert models.shapes_of(models.served_20m()) == steps.served_20m()
    assert models.shapes_of(models.qwen3_06b()) == steps.qwen3_06b()
    assert 18e6 < steps.elements(steps.served_20m()) < 20e6


def test_weights_are_bf16_in_those_shapes() -> None:
    config = models.smallest()
    assert {name: tuple(tensor.shape) for name, tensor in models.weights_of(config).items()} == models.shapes_of(
        config
    )
    assert {str(tensor.dtype) for tensor in models.weights_of(config).values()} == {"torch.bfloat16"}
