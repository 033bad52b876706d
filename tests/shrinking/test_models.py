"""Models of many shapes, shrunk: they give what the masked ones give, for other inputs too."""

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.model.graph import find_groups
from tests.shrinking.helpers import assert_same, count, outputs, zero_units
from tests.shrinking.models import KINDS, TOKENS, Packed, settled


@pytest.mark.parametrize("kind", KINDS)
def test_a_smaller_model_gives_the_same(kind):
    torch.manual_seed(0)
    model = zero_units(settled(kind()), kind.x)
    small, _ = pw.shrink(model, kind.x)
    assert count(small) < 0.8 * count(model)
    other = torch.randn_like(kind.x)
    assert_same(outputs(model, other), outputs(small, other))
    halves = [(group.name, -(-group.units // 2)) for group in find_groups(model, kind.x)]
    assert [(group.name, group.units) for group in find_groups(small, kind.x)] == halves


@pytest.mark.parametrize("kind", KINDS)
def test_a_pruner_masks_what_shrink_removes(kind):
    torch.manual_seed(0)
    model = settled(kind())
    pruner = pw.Pruner(model, criterion="magnitude", pattern=pw.Filter())
    pruner.prune(0.4, example_inputs=kind.x, of="filters")
    small, _ = pw.shrink(pruner, kind.x)
    assert count(small) < 0.9 * count(model)
    assert_same(outputs(model, kind.x), outputs(small, kind.x))


@pytest.mark.parametrize("form", ["unbound", "chunked", "by_head"])
def test_packed_heads(form):
    torch.manual_seed(0)
    model = zero_units(Packed(form), TOKENS)
    small, _ = pw.shrink(model, TOKENS)
    assert small.qkv.out_features == 48
    assert_same(outputs(model, TOKENS), outputs(small, TOKENS))


def test_a_width_that_is_written_into_the_code_is_an_error_that_names_the_layer():
    model = zero_units(Packed("written"), TOKENS)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"does not run, in the forward\(\) of Packed.*It lost units of qkv"):
        pw.shrink(model, TOKENS)
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())


class Masked(nn.Module):
    def __init__(self, first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=first)
        self.t, self.h = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 3)

    def forward(self, x, mask=None, padding=None):
        return self.h(self.t(x, mask, padding))


@pytest.mark.parametrize("first", [True, False])
def test_torchs_own_attention_with_masks(first):
    torch.manual_seed(0)
    mask, padding = nn.Transformer.generate_square_subsequent_mask(5), torch.zeros(2, 5)
    x = (TOKENS if first else TOKENS.transpose(0, 1), mask, padding)
    model = zero_units(Masked(first), x)
    small, _ = pw.shrink(model, x)
    assert small.t.layers[0].self_attn.num_heads == 2
    for given in (x, x[:1], (x[0], mask.isinf()), (x[0], None, torch.tensor([[False] * 4 + [True]] * 2))):
        assert_same(outputs(model, given), outputs(small, given))
    small.train()(*x).sum().backward()


def test_torchs_own_attention_called_alone():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(32, 4, batch_first=True)
    x = {"query": TOKENS, "key": TOKENS, "value": TOKENS, "average_attn_weights": False, "need_weights": False}
    small, _ = pw.shrink(zero_units(model, x), x)
    one = {"query": TOKENS[0], "key": TOKENS[0], "value": TOKENS[0], "attn_mask": torch.ones(4, 5, 5).tril() == 0}
    whole = model(**one)[0]
    half = small(**(one | {"attn_mask": one["attn_mask"][2:]}))
    torch.testing.assert_close(half[0], whole, rtol=1e-5, atol=1e-5)
    assert half[1].shape == (5, 5)
    assert small(TOKENS, TOKENS, TOKENS, average_attn_weights=False)[1].shape == (2, 2, 5, 5)


def hugging_face():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, **sizes)
    return {
        "llama": lambda: transformers.LlamaForCausalLM(llama),
        "bert": lambda: transformers.BertModel(transformers.BertConfig(vocab_size=50, **sizes)),
        "gpt2": lambda: transformers.GPT2Model(
            transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
        ),
    }


@pytest.mark.parametrize(
    ("name", "heads"), [("llama", "num_attention_heads"), ("bert", "num_attention_heads"), ("gpt2", "n_head")]
)
def test_models_of_hugging_face(name, heads, tmp_path):
    torch.manual_seed(0)
    make = hugging_face()[name]
    x = {"input_ids": torch.randint(0, 50, (2, 6)), "attention_mask": torch.ones(2, 6).long()}
    model = zero_units(make(), x)
    small, _ = pw.shrink(model, x)
    assert getattr(small.config, heads) == 2
    assert getattr(model.config, heads) == 4
    assert_same(outputs(model, x), outputs(small, x))
    pw.save(small, tmp_path / "small.pw")
    loaded = pw.load(tmp_path / "small.pw", into=make())
    assert getattr(loaded.config, heads) == 2
    assert_same(outputs(small, x), outputs(loaded, x))
