"""How the model card of a folder of ONNX graphs says to use it."""

from sparing import __version__

USE = f"""\
```sh
pip install onnxruntime
python run.py "A text to continue"
```

`run.py` is an example of {{lines}} lines that needs ONNX Runtime and NumPy only. `step.onnx` reads one
token, `chunk.onnx` {{chunk}} at a time; both read and write the same state, so a text is read in
chunks and then token by token. Inputs are `tokens` (lanes, tokens) and `in.NAME` for everything
carried; outputs are `logits` and `out.NAME`. Memories, whose names contain `ring.`, may have the
same place for both: then nothing is copied. Vocabulary, first state and settings are in the
metadata of the graphs, weights ({{weights}}) in `weights.bin`. Written by `sparing` {__version__}
(MIT), which reads the folder in place of a run: `sparing generate FOLDER`.
"""
