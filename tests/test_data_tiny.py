"""The tiny model: its tokenizer, its size, and that the shipped directory is what its README says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from echo2.errors import UserError  # noqa: E402
from echo2.runtime.data import tiny  # noqa: E402
from echo2.runtime.data.encode import encode_prompt  # noqa: E402
from echo2.runtime.data.registry import load_task  # noqa: E402
from echo2.runtime.data.task import Prompt, in_split  # noqa: E402

SHIPPED = Path(__file__).parent.parent / "assets" / "tiny-sort"


def test_every_character_is_one_token() -> None:
    """Text becomes one token a character and comes back as it was; unknown ones become <unk>."""
    tokenizer = tiny.character_tokenizer()
    text = "50291>01259 37+85=122"
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("é\n") == [tokenizer.unk_token_id] * 2
    assert (
        tokenizer.decode([*tokenizer.encode("12"), tokenizer.eos_token_id], skip_special_tokens=True) == "12"
    )


def test_the_shipped_directory_loads_like_any_model() -> None:
    """The shipped model loads from its directory alone: 0.41 M parameters, tied, head size 64, < 2 MB."""
    model = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED)
    tokenizer = transformers.AutoTokenizer.from_pretrained(SHIPPED)
    assert model.num_parameters() == 405_248
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (model.config.head_dim, model.config.eos_token_id) == (64, tokenizer.eos_token_id)
    assert sum(f.stat().st_size for f in SHIPPED.iterdir()) < 2_000_000
    assert tokenizer.get_vocab() == tiny.character_tokenizer().get_vocab()


def test_the_shipped_model_has_room_to_learn() -> None:
    """Sampled at temperature 1 the shipped model sorts 5 to 20 % of prompts, and knows other behaviours."""
    model = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED)
    tokenizer = tiny.character_tokenizer()
    task = load_task("digit_sort", split="heldout")
    prompts = [task.prompt(i) for i in range(400)]
    encoded = tokenizer([p.text for p in prompts], return_tensors="pt", padding=True)
    torch.manual_seed(0)
    out = model.generate(
        input_ids=encoded["input_ids"],
        attention_mask=encoded["attention_mask"],
        max_new_tokens=12,
        do_sample=True,
        top_k=0,
    )
    texts = tokenizer.batch_decode(out[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    rewards = [task.reward(p, text) for p, text in zip(prompts, texts)]
    assert 0.05 < sum(rewards) / len(rewards) < 0.20
    copied = sum(text == p.text.removesuffix(">") for p, text in zip(prompts, texts))
    assert copied > 10


def test_warm_start_lowers_the_loss_and_repeats() -> None:
    """A few supervised steps lower the loss, and the same seed gives the same losses."""

    def losses() -> list[float]:
        seen: list[float] = []
        model = tiny.tiny_qwen3(seed=3, hidden=64, layers=1)
        tiny.warm_start(model, "clean", 40, batch=32, seed=3, report=lambda _, loss: seen.append(loss))
        return seen

    first = losses()
    assert first == losses()
    assert first[-1] < first[0] - 0.5


@pytest.mark.parametrize("kind", ["mixed", "clean"])
def test_warm_start_examples_keep_off_the_held_out_problems(kind: str) -> None:
    """Warm-start prompts all come from the train split; mixed answers show all four behaviours, clean one."""
    rng = random.Random(0)
    pairs = [tiny.warm_start_example(rng, kind, i, 0) for i in range(400)]
    digits = [prompt.removesuffix(">") for prompt, _ in pairs]
    assert all(in_split(d, "train") for d in digits)
    shown = {
        name
        for name, behave in tiny.BEHAVIOURS.items()
        if sum(behave(d) == answer for d, (_, answer) in zip(digits, pairs)) > 60
    }
    assert shown == (set(tiny.BEHAVIOURS) if kind == "mixed" else {"ascending"})


def test_prompts_are_encoded_by_template_and_bounded() -> None:
    """Plain where there is no template, by the template where there is; too long or empty is refused."""
    tokenizer = tiny.character_tokenizer()
    assert encode_prompt(tokenizer, Prompt(0, "31>")) == tuple(tokenizer.encode("31>"))
    with pytest.raises(UserError, match="prompt 4 has 9 tokens; it must have 1 to 8"):
        encode_prompt(tokenizer, Prompt(4, "12345678>"), max_tokens=8)
    with pytest.raises(UserError, match="prompt 0 has 0 tokens"):
        encode_prompt(tokenizer, Prompt(0, ""))
    with pytest.raises(UserError, match="has none; choose 'plain'"):
        encode_prompt(tokenizer, Prompt(0, "1>"), template="chat")
    with pytest.raises(UserError, match="template is 'html'"):
        encode_prompt(tokenizer, Prompt(0, "1>"), template="html")
    tokenizer.chat_template = "{% for m in messages %}({{ m.content }}){% endfor %}="
    assert tokenizer.decode(encode_prompt(tokenizer, Prompt(0, "12", system="3"))) == "(3)(12)="
    assert tokenizer.decode(encode_prompt(tokenizer, Prompt(0, "12"), template="plain")) == "12"
