"""Settings come from the environment, and each mistake is one sentence."""

import pytest

from space_vllm.settings import SettingError, Settings

GOOD = {"BUCKET": "user/name", "MODEL": "some/model", "VLLM_API_KEY": "secret-key"}


def test_the_defaults_follow_the_newest_run_on_the_port_of_spaces() -> None:
    settings = Settings.from_environment(GOOD)
    assert (settings.port, settings.run_id, settings.served_model_name) == (7860, None, "some/model")


def test_secrets_are_not_printed() -> None:
    assert "secret" not in repr(Settings.from_environment({**GOOD, "HF_TOKEN": "hf_secret"}))


def test_on_a_space_the_bucket_is_that_of_whom_the_space_belongs_to() -> None:
    space = {"SPACE_AUTHOR_NAME": "somebody", "SPACE_ID": "somebody/vllm", "HF_TOKEN": "hf_secret"}
    assert Settings.from_environment({**GOOD, **space, "BUCKET": ""}).bucket == "somebody/async-rl-weights"
    assert Settings.from_environment({**GOOD, **space}).bucket == "user/name"


def test_on_a_space_the_bucket_cannot_be_read_without_a_token() -> None:
    assert Settings.from_environment(GOOD).hf_token is None
    with pytest.raises(SettingError, match="^HF_TOKEN is not set: make a token that may read the bucket"):
        Settings.from_environment({**GOOD, "SPACE_ID": "somebody/vllm"})


def test_everything_that_is_missing_is_told_at_once() -> None:
    _, problems = Settings.read({"SPACE_ID": "somebody/vllm", "PORT": "web"})
    assert [str(problem).split()[0] for problem in problems] == "MODEL BUCKET PORT VLLM_API_KEY HF_TOKEN".split()


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN"])
@pytest.mark.parametrize("secret", ["secret-key\n", "secret key", "secret-k\xe9y"])
def test_a_secret_that_no_header_can_carry_is_told_and_not_printed(name: str, secret: str) -> None:
    with pytest.raises(SettingError, match=f"^{name} holds a space, a line break or a letter") as refused:
        Settings.from_environment({**GOOD, name: secret})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_or_empty_variable_is_named(name: str) -> None:
    with pytest.raises(SettingError, match=f"^{name} is not set"):
        Settings.from_environment({**GOOD, name: ""})


@pytest.mark.parametrize(("text", "seconds"), [("", 60.0), ("0", 0.0), ("0.5", 0.5), ("3600", 3600.0)])
def test_the_period_of_the_audit_is_in_seconds(text: str, seconds: float) -> None:
    assert Settings.from_environment({**GOOD, "AUDIT_SECONDS": text}).audit_s == seconds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("PORT", "0"), ("PORT", "65536"), ("PORT", "web"), ("PORT", "9" * 5000)),
        ("RUN_ID", "a/b"),
        *(("AUDIT_SECONDS", "-1"), ("AUDIT_SECONDS", "nan"), ("AUDIT_SECONDS", "inf"), ("AUDIT_SECONDS", "1m")),
    ],
)
def test_a_malformed_variable_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"^{name} is '{value}'"):
        Settings.from_environment({**GOOD, name: value})
