"""Arrays and events for other processes on the same machine."""

from streamkit._support.tokens import EventToken
from streamkit.processes.array_token import ArrayToken, open_event, token_from_bytes
from streamkit.processes.leases import Lease, share

__all__ = ["ArrayToken", "EventToken", "Lease", "open_event", "share", "token_from_bytes"]
