"""Settings come from the environment, and each mistake is one sentence."""

import pytest

from space_vllm.settings import SettingError, Settings

GOOD = {"BUCKET": "user/name", "MODEL": "some/model", "VLLM_API_KEY": "secret-key"}


def test_the_defaults_follow_the_newest_run_on_the_port_of_spaces() -> None:
    settings = Settings.from_environment(GOOD)
    assert (settings.port, settings.run_id, settings.served_model_name) == (7860, None, "some/model")


def test_secrets_are_not_printed() -> None:
    assert "secret" not in repr(Settings.from_environment({**GOOD, "HF_TOKEN": "hf_secret"}))


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
        *(("PORT", "0"), ("PORT", "65536"), ("PORT", "web")),
        ("RUN_ID", "a/b"),
        *(("AUDIT_SECONDS", "-1"), ("AUDIT_SECONDS", "nan"), ("AUDIT_SECONDS", "inf"), ("AUDIT_SECONDS", "1m")),
    ],
)
def test_a_malformed_variable_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"^{name} is '{value}'"):
        Settings.from_environment({**GOOD, name: value})
