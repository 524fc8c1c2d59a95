"""All networks, by family."""

from __future__ import annotations

from .derivatives import DERIVATIVES
from .diffusion import DIFFUSION
from .library import LIBRARY
from .network import Network
from .training import TRAINING
from .unusual import UNUSUAL
from .written import WRITTEN

NETWORKS: tuple[Network, ...] = (*LIBRARY, *DIFFUSION, *WRITTEN, *UNUSUAL, *TRAINING, *DERIVATIVES)

__all__ = ["NETWORKS", "Network"]
