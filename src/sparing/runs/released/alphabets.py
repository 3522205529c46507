"""In which order released models number the bytes of their corpora."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alphabet:
    """A corpus, the ids in the released models, and the ids here."""

    corpus: str
    theirs: bytes
    """Symbols in the order of the rows in the file; a newline is the original's `<eos>`."""
    ours: bytes
    """The order in which `data.symbol_order=appearance` numbers the prepared text."""


ENWIK8 = bytes.fromhex(
    "3c6d65646961776b20786c6e733d226874703a2f2e6f72672d30333231584d4c5363763e0a6657625f503679545534"
    "35493738394843415a754a235245445b5d7b7d462a277c6a26713b7a2c4728294f4b56424ec3a93f59aaa2a0b35121"
    "e280947e93a125d984d8a7b7888ad090bdb0d185b8bcaf8cb2a6dbd7a89b99969de38283adbaec95eb98eda4e0a5b1"
    "97b4b9c59fe6bfe59ce4bb89c4ab2b9e8fe1a3e887e9e7ae818dc2b5beac91b68b8ec9ca5c86249acfce09da92c740"
    "d2d6cceacb5e60c6d4d5efd3dccdf0c8de"
)
TEXT8 = b"anrchism ogtedfbulywkvpjzqx"
ENWIK8_BY_FREQUENCY = bytes.fromhex(
    "20657461696f6e72736c686463755d5b6d706766796227772e2c763b267c2f316b3d3043413a2d54533c3e32714939"
    "2a782928424d5045443533484638344752364c374e577a7d7b4f6a554a4bd05fc32356d75a2259d180e0b8835ce325"
    "21b0a9cee2823f5851a1992b81bcb3d8a4b5bd94beadbbbae5e1a7d9b1b2a895b9c59093c4cfc2b49c84aaa688b6bf"
    "09e68da0af24988ca5915e85a3b7ab9d89ae8687ec97e79bc99e8a8f96a29f8bac9a7ee8eb92e9e4cacb8ed6edccdb"
    "ead560dac740d2efc6d3cdd4f0dedcc8"
)
"""Most frequent first in all of enwik8 but its newlines: how Transformer-XL numbers bytes."""
ENWIK8_BY_FREQUENCY_IN_TRAIN = bytes.fromhex(
    "20657461696f6e72736c686463755d5b6d7067660a796227772e2c763b267c312f6b3d3041433a2d54533c3e327139"
    "2a49782928424d5045443533464847383452364c374e577a7d7b4f6a554a4bd05fc35623d7225ad15980e083b85c25"
    "e3b021a9cee2823f5851a1bc812b99b3d8a4b5bd94beadbbe1bae5b1a7b2a8d995b990cf93c5c2b4c49c84aaa6bf88"
    "b6e6a08daf248c98915ea5a3b789ab9dae0985868797ece7c99b9e8f8a96a28b9f9aac7ee892ebe9e4cacbd68eeddb"
    "eaccd5da4060c7d2efd3c6d4f0cddcdec8"
)
"""Most frequent first in the training text: how SHA-RNN numbers bytes, and how we do."""
ALPHABETS = {
    len(ENWIK8): Alphabet("enwik8", ENWIK8, ENWIK8),
    # The original strips the first space of text8, and ends the text with one <eos>.
    len(TEXT8) + 1: Alphabet("text8", TEXT8 + b"\n", b" " + TEXT8.replace(b" ", b"") + b"\n"),
}
