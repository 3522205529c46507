"""For every test: one thread (the runner uses both cores), and no traces outside its folder."""

import torch

torch.set_num_threads(1)
