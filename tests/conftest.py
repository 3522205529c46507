"""For every test: one thread (the runner uses both cores), and no traces outside its folder.

Without a GPU, Triton's kernels run as plain Python; triton reads that wish when it is imported.
"""

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
