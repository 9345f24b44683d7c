"""What Prometheus and a kubelet see of a program: metrics, health and readiness on one plaintext port."""

from hanse.observability import tracing
from hanse.observability.metrics import KnownWords, new_registry
from hanse.observability.port import PlainPort

__all__ = ["KnownWords", "PlainPort", "new_registry", "tracing"]
