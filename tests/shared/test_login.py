"""Who may see the monitor, from the settings."""

import pytest

from shared.login import Login


@pytest.mark.parametrize("user", ["me ", " me", "me\t"])
def test_a_name_that_no_login_would_match_is_refused(user: str) -> None:
    with pytest.raises(ValueError, match="MONITOR_USER begins or ends with a blank"):
        Login.from_environment({"MONITOR_USER": user, "MONITOR_PASSWORD": "sesame"})
    assert Login.from_environment({"MONITOR_USER": "m e", "MONITOR_PASSWORD": " x "}) == Login("m e", " x ")
