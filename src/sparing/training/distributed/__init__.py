"""Several processes that train one model: DDP, FSDP and the process group."""
