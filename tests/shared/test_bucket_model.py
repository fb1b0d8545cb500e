import traceback

import pytest

from shared.bucket.model import model_files
from shared.errors import ChainError


@pytest.mark.parametrize("error", [TypeError("a list"), KeyError("sha"), OSError(""), ValueError("Bearer abc")])
def test_whatever_the_hub_answers_of_a_model_is_a_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*arguments: object, **options: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ChainError, match="model 'user/model' at commit main cannot be had: .") as caught:
        model_files("user/model", "")
    assert "Bearer abc" not in "".join(traceback.format_exception(caught.value))
