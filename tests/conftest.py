"""For every test: one thread (the runner uses both cores), and no deadlines.

Without a GPU, Triton's kernels run as plain Python; triton reads that variable when it is imported.
"""

import os

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A busy machine makes every example slow; a test must not fail for that.
settings.register_profile("sparing", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sparing")
