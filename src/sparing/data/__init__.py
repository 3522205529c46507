"""From the download of a corpus to batches of tokens. Independent of any model."""
