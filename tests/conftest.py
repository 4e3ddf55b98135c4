"""Settings every test shares: deterministic property tests, one compute thread."""

import os

from hypothesis import HealthCheck, settings

# Ranks and tests share two cores; figures and results must not depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly",
    derandomize=False,
    deadline=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

try:
    import torch
except ImportError:  # the balancer's environment carries no torch
    pass
else:
    torch.set_num_threads(1)
