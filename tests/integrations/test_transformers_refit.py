"""Hugging Face's models refitted as they come, block by block, with padding that does not count."""

import copy
import warnings

import pytest
import torch

import prunewald as pw
from prunewald.refitting import stages

transformers = pytest.importorskip("transformers", reason="pip install 'prunewald[transformers]'")
pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **IDS, num_key_value_heads=1))


def gpt2():
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, **IDS)
    return transformers.GPT2LMHeadModel(config)


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, **IDS))


def mixtral():
    config = transformers.MixtralConfig(**SMALL, **IDS, num_key_value_heads=1, num_local_experts=3)
    return transformers.MixtralForCausalLM(config)


def t5():
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, pad_token_id=0, eos_token_id=2, decoder_start_token_id=0)
    )


def data(*, labels=False):
    mask = torch.ones(10, 8, dtype=torch.long)
    mask[::2, 5:] = 0
    generator = torch.Generator().manual_seed(0)
    found = [
        {"input_ids": torch.randint(3, 50, (10, 8), generator=generator), "attention_mask": mask} for _ in range(4)
    ]
    return (
        [{**batch, "labels": torch.randint(3, 50, (10, 5), generator=generator)} for batch in found]
        if labels
        else found
    )


def refitted(model, batches, **options):
    dense = copy.deepcopy(model)
    pruner = pw.Pruner(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner.prune(0.4)
        report = pw.refit(pruner, batches, dense=dense, **options)
    return report.refit


_SLOW = [pytest.param(make, marks=pytest.mark.slow) for make in (gpt2, bert, t5)]


@pytest.mark.parametrize("make", [llama, mixtral, *_SLOW])
def test_every_layer_is_refitted_and_blocks_give_what_the_whole_gives(make, monkeypatch):
    torch.manual_seed(0)
    model = make().eval()
    other, batches = copy.deepcopy(model), data(labels=make is t5)
    caching = model.config.use_cache
    one = refitted(model, batches)
    assert one.after < one.before
    assert not any("does not know" in layer.reason for layer in one.layers)
    assert len(one.layers) >= 8
    assert model.config.use_cache == caching
    monkeypatch.setattr(stages, "_FEWEST", 1000)
    two = refitted(other, batches)
    assert [layer.name for layer in one.layers] == [layer.name for layer in two.layers]
    for a, b in zip(one.layers, two.layers, strict=True):
        assert a.positions == b.positions
        assert a.after == pytest.approx(b.after, rel=1e-2)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


def test_padding_does_not_count():
    """What stands at padded positions changes nothing, and they are not among those that were fitted to."""
    torch.manual_seed(0)
    model = llama().eval()
    other, batches = copy.deepcopy(model), data()
    changed = copy.deepcopy(batches)
    for batch in changed:
        batch["input_ids"][batch["attention_mask"] == 0] = 7
    one, two = refitted(model, batches), refitted(other, changed)
    assert {layer.positions for layer in one.layers} == {4 * (4 * 5 + 4 * 8)}
    assert one.after == pytest.approx(two.after, rel=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_pruned_model_is_closer_to_the_dense_one_on_other_text(tmp_path):
    torch.manual_seed(0)
    model = gpt2().eval()
    dense, pruned = copy.deepcopy(model), copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pw.Pruner(pruned).prune(0.4)
        pw.Pruner(model).prune(0.4, refit=data(), folder=tmp_path)
    ids = torch.randint(3, 50, (6, 8))
    with torch.no_grad():
        goal, before, after = (one(input_ids=ids).logits for one in (dense, pruned, model))
    assert (after - goal).square().sum() < 0.7 * (before - goal).square().sum()
