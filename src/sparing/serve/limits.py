"""What a server grants to its clients, and how much it keeps for them."""

from dataclasses import dataclass

from sparing.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds on what one request, and all requests together, may ask for."""

    lanes: int = 16
    """Requests that are worked on together; each writes one text."""
    queue: int = 64
    """Texts that may wait for a lane; beyond it, requests are answered with 429."""
    chunk: int = 128
    """Tokens of a prompt read at a time; between two chunks all others write one token."""
    prompt_tokens: int = 16384
    """Longest prompt, or text to score, in tokens."""
    max_tokens: int = 4096
    """Most tokens written for one choice."""
    logprobs: int = 1 << 18
    """Most log-probabilities in one answer, which takes about half a KiB of memory for each."""
    body_bytes: int = 1 << 20
    """Longest body of a request."""
    time_s: float = 300.0
    """Longest time from the arrival of a request to the end of its answer."""
    connections: int = 1024
    """Connections open at once; beyond it, requests are answered with 503."""
    cache_bytes: int = 1 << 29
    """Memory for the states of prompts that may come again."""

    def __post_init__(self) -> None:
        for name in ("lanes", "chunk", "prompt_tokens", "max_tokens", "body_bytes", "connections"):
            if getattr(self, name) < 1:
                raise UserError(f"{name.replace('_', ' ')} must be at least 1")
        if self.queue < 0 or self.cache_bytes < 0:
            raise UserError("--queue and --cache must not be negative; 0 switches them off")
        if not self.time_s > 0:
            raise UserError(f"the time limit must be above 0, not {self.time_s}")
