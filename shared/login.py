"""Who may see the monitor, where that is not everybody. Knows two settings, and nothing of pages."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Login:
    """Without it a page is open to whoever can reach it."""

    user: str
    password: str = field(repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Login | None":
        """MONITOR_USER and MONITOR_PASSWORD. ValueError when only one of them is set, or none could log in."""
        user, password = environment.get("MONITOR_USER", ""), environment.get("MONITOR_PASSWORD", "")
        if bool(user) != bool(password):
            missing = "MONITOR_PASSWORD" if user else "MONITOR_USER"
            raise ValueError(f"{missing} is not set, but the other half of the login is: set both, or none")
        if user != user.strip():
            raise ValueError("MONITOR_USER begins or ends with a blank, which no login would match: set it without")
        return cls(user, password) if user else None
