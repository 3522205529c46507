"""How the model card of a folder of ONNX graphs says to use it."""

from sparing import __version__

USE = f"""\
```sh
pip install onnxruntime
python run.py "A text to continue"
```

`run.py` is an example that needs ONNX Runtime and NumPy only (and SentencePiece, where tokens are
pieces of words). `step.onnx` reads one token, `chunk.onnx` {{chunk}} at a time. Both carry the same
state, so a text is read in chunks and then token by token, in any number of lanes. Inputs are
`tokens` (lanes, tokens) and `in.NAME` for everything carried, outputs `logits` and `out.NAME`. A
memory, whose name contains `ring.`, may have one place for both: then nothing is copied. The
metadata of the graphs holds vocabulary, first state and settings; `weights.bin` holds the weights
({{weights}}). Written by `sparing` {__version__} (MIT), which takes the folder in place of a run:
`sparing generate FOLDER`.
"""
