"""How the model card of a folder for Transformers says to use it."""

from sparing import __version__

USE = f"""\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)
inputs = tokenizer(["A text to continue"], return_tensors="pt", padding=True)
written = model.generate(**inputs, max_new_tokens=100, do_sample=True)
print(tokenizer.batch_decode(written, skip_special_tokens=True))
```

It needs Transformers 5.12 or newer. `trust_remote_code` runs the Python files of this folder. They
are those of `sparing` {__version__} (MIT) that this model needs; `sparing` itself need not be
installed. `past_key_values` holds what the model carries: any length of text, at bounded size. Pad
batches on the left.
"""
