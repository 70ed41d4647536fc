"""The learning plane: GRPO on a Hugging Face causal LM. Importing this package loads no torch.

`learner.Learner` is what a driver uses; `advantages`, `losses`, `batch` and `logprobs` are its pure parts,
`checkpoint` saves and restores it.
"""
