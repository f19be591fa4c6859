"""Arrays and events for other processes on the same machine."""

from streamkit._interprocess.tokens import EventToken
from streamkit._sharing.leases import Lease, share
from streamkit._sharing.token import ArrayToken, open_event, token_from_bytes

__all__ = ["ArrayToken", "EventToken", "Lease", "open_event", "share", "token_from_bytes"]
