"""PEFT: a frozen base that is pruned, adapters whose delta is masked, and merges that keep zeros and outputs."""

import copy
import io

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.integrations.peft import mask_adapters
from tests.resuming import same

peft = pytest.importorskip("peft", reason="peft is not installed: pip install 'prunewald[peft]'")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft asks transformers


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, stride=2, padding=1)
        self.hidden = nn.Linear(32, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.hidden(self.conv(x).relu().flatten(1)).relu())


LAYERS = ["conv", "hidden", "head"]
WEIGHTS = [f"{name}.weight" for name in LAYERS]


def plain(seed=0):
    torch.manual_seed(seed)
    return Net()


def adapted(seed=0, targets=LAYERS, **options):
    options = {"r": 4, "target_modules": targets, "lora_dropout": 0.1, "init_lora_weights": "gaussian", **options}
    return peft.get_peft_model(plain(seed), peft.LoraConfig(**options))


def inputs(at):
    return torch.randn(16, 2, 4, 4, generator=torch.Generator().manual_seed(at))


def optimizer_of(model):
    return torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=0.02)


def train(model, optimizer, first=0, last=12):
    model.train()
    for at in range(first, last):
        torch.manual_seed(at)  # dropout
        x = inputs(at)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, 0, 0, :3].argmax(1)).backward()
        optimizer.step()


def pruned(model, sparsity=0.7, **choices):
    """A Pruner of a model with adapters that have learned, masked, and trained on."""
    optimizer = optimizer_of(model)
    train(model, optimizer)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", **choices)
    mask_adapters(model, pruner)
    pruner.prune(sparsity)
    train(model, optimizer)
    return pruner, optimizer


def out(model):
    with torch.no_grad():
        return model.eval()(inputs(99))


def assert_zeros(model, masks):
    for name, mask in masks.items():
        weight = model.get_parameter(name)
        assert not weight[~mask].any()
        assert (weight[mask] != 0).all()


# ---- what is pruned ----------------------------------------------------------------------------------------------


def test_the_frozen_base_goes_by_magnitude_and_adapters_are_left_out_and_named():
    model = adapted()
    optimizer = optimizer_of(model)
    pruner = pw.Pruner(model, optimizer)
    mask_adapters(model, pruner)
    train(model, optimizer)
    adapters = {name: param.clone() for name, param in model.named_parameters() if "lora_" in name}
    report = pruner.prune(0.6)
    assert [row.name for row in report.rows] == WEIGHTS
    assert "magnitude, since 'conv.weight' does not require gradients" in report.notes[0]
    (left,) = [note for note in report.notes if "left out" in note]
    assert "hidden.lora_A.default.weight" in left
    (masked,) = [note for note in report.notes if "adapters of" in note]
    assert "conv.weight, hidden.weight, head.weight are masked" in masked
    assert all(torch.equal(param, adapters[name]) for name, param in model.named_parameters() if "lora_" in name)


@pytest.mark.parametrize("of", ["the adapted model", "the plain view"])
def test_an_offline_sigma_fits_by_the_names_of_either(of):
    model = adapted()
    pruner = pw.Pruner(model, optimizer_of(model))
    mask_adapters(model, pruner)
    batches = [(inputs(at), None) for at in range(3)]
    asked = model if of == "the adapted model" else pruner.model
    sigma = pw.uncertainty.LayerLeastSquares().estimate(asked, batches)
    report = pruner.prune(0.6, uncertainty=sigma)
    assert report.criterion == "MagnitudeUncertainty()"
    assert report.uncertainty.startswith("a dict of")
    assert pw.Pruner(adapted(), uncertainty=dict(sigma)).prune(0.6).rows == report.rows


def test_a_layer_that_is_trained_whole_has_the_name_it_has_after_the_merge():
    model = adapted(targets=["conv", "hidden"], modules_to_save=["head"])
    optimizer = optimizer_of(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    mask_adapters(model, pruner)
    report = pruner.prune(0.6)
    assert [row.name for row in report.rows] == WEIGHTS
    assert any("head.original_module.weight" in note for note in report.notes if "left out" in note)
    train(model, optimizer)
    before = out(model)
    torch.testing.assert_close(pruner.model.eval()(inputs(99)), before)
    merged = model.merge_and_unload()
    assert_zeros(merged, pruner.masks)
    torch.testing.assert_close(out(merged), before, rtol=0, atol=1e-5)


# ---- merging -----------------------------------------------------------------------------------------------------


OPTIONS = [
    {},
    {"lora_bias": True, "init_lora_weights": False},
    {"use_rslora": True, "lora_dropout": 0.0},
    {"init_lora_weights": "pissa", "targets": ["hidden", "head"]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "bias", "rslora", "pissa"])
@pytest.mark.parametrize("safe", [False, True], ids=["", "safe"])
def test_a_merge_keeps_zeros_and_outputs(options, safe):
    model = adapted(**options)
    pruner, _ = pruned(model)
    before = out(model)
    merged = model.merge_and_unload(safe_merge=safe)
    assert type(merged) is Net
    assert type(merged.hidden) is nn.Linear
    assert_zeros(merged, pruner.masks)
    torch.testing.assert_close(out(merged), before, rtol=0, atol=1e-5)


def test_without_the_masks_a_merge_fills_the_zeros_and_the_report_says_so():
    model = adapted()
    optimizer = optimizer_of(model)
    train(model, optimizer)
    report = pw.Pruner(model, optimizer, criterion="magnitude").prune(0.7)
    (note,) = [note for note in report.notes if "adapters add to" in note]
    assert "mask_adapters(model, pruner)" in note
    assert (model.merge_and_unload().hidden.weight != 0).all()


def test_gradients_are_those_of_a_dense_layer_with_the_masked_sum():
    model = adapted(lora_dropout=0.0)
    pruner, _ = pruned(model)
    layer, x = model.base_model.model.hidden, torch.randn(5, 32, requires_grad=True)
    factors = [layer.lora_A["default"].weight, layer.lora_B["default"].weight]
    found = torch.autograd.grad(layer(x).square().sum(), [x, *factors])
    mask = pruner.masks["hidden.weight"]
    weight = layer.base_layer.weight + mask * (factors[1] @ factors[0]) * layer.scaling["default"]
    wanted = torch.autograd.grad(nn.functional.linear(x, weight, layer.base_layer.bias).square().sum(), [x, *factors])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_merging_and_unmerging_goes_there_and_back():
    model = adapted()
    pruner, optimizer = pruned(model)
    before = out(model)
    model.merge_adapter()
    torch.testing.assert_close(out(model), before, rtol=0, atol=1e-5)
    assert_zeros(pruner.model, pruner.masks)
    model.unmerge_adapter()
    torch.testing.assert_close(out(model), before, rtol=0, atol=1e-5)
    train(model, optimizer, 0, 3)
    assert_zeros(pruner.model, pruner.masks)


def test_as_the_schedule_prunes_the_masks_of_the_adapters_follow():
    model = adapted()
    optimizer = optimizer_of(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", schedule=pw.Cubic(0.8, begin=2, end=10, every=2))
    mask_adapters(model, pruner)
    train(model, optimizer)
    assert pruner.sparsity == pytest.approx(0.8, abs=1e-2)
    assert len(pruner.history) > 3
    before, masks = out(model), pruner.masks
    merged = model.merge_and_unload()
    assert_zeros(merged, masks)
    torch.testing.assert_close(out(merged), before, rtol=0, atol=1e-5)


def test_a_model_that_was_compiled_before_the_pruning_sees_the_masks():
    torch.compiler.reset()
    model = adapted(lora_dropout=0.0, init_lora_weights=False)
    pruner = pw.Pruner(model, criterion="magnitude")
    mask_adapters(model, pruner)
    compiled = torch.compile(model.eval(), backend="eager")
    for share in (0.0, 0.4, 0.8):
        pruner.prune(share)
        torch.testing.assert_close(out(compiled), out(model), rtol=0, atol=0)
    torch.testing.assert_close(out(model.merge_and_unload()), out(compiled), rtol=0, atol=1e-5)


def test_where_nothing_is_pruned_a_layer_computes_as_without_masks():
    model = adapted()
    other = copy.deepcopy(model)
    mask_adapters(other, pw.Pruner(other, criterion="magnitude"))
    train(model, optimizer_of(model))
    train(other, optimizer_of(other))
    assert same(dict(model.state_dict()), dict(other.state_dict()))


def test_several_adapters_those_added_later_and_mixed_batches():
    model = adapted()
    pruner, _ = pruned(model)
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules=LAYERS, init_lora_weights=False))
    first = out(model)
    model.set_adapter("second")
    second = out(model)
    assert not torch.allclose(first, second)
    mixed = model(inputs(99), adapter_names=["default"] * 8 + ["second"] * 8)
    torch.testing.assert_close(mixed, torch.cat([first[:8], second[8:]]))
    model.base_model.set_adapter(["default", "second"])
    both = out(model)
    merged = model.merge_and_unload()
    assert_zeros(merged, pruner.masks)
    torch.testing.assert_close(out(merged), both, rtol=0, atol=1e-5)


def test_with_its_adapters_disabled_the_model_is_the_pruned_base():
    model = adapted()
    pruner, _ = pruned(model)
    base = plain()
    pw.masks.apply_(base, pruner.masks)
    with model.disable_adapter():
        torch.testing.assert_close(out(model), out(base))
    assert not torch.allclose(out(model), out(base))


# ---- saving ------------------------------------------------------------------------------------------------------


def test_a_saved_adapter_on_the_pruned_base_gives_the_same_outputs(tmp_path):
    model = adapted()
    earlier, _ = pruned(model)
    before = out(model)
    model.save_pretrained(tmp_path)
    earlier.detach()
    base = model.unload()
    again = peft.PeftModel.from_pretrained(base, tmp_path)
    pruner = pw.Pruner(again, criterion="magnitude")
    pruner.hold_zeros()
    mask_adapters(again, pruner)
    torch.testing.assert_close(out(again), before)


def test_the_state_of_a_pruner_resumes_bit_for_bit_and_loads_into_the_merged_model():
    model = adapted()
    pruner, optimizer = pruned(model)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), pruner.state_dict()])
    train(model, optimizer, 12, 20)

    other = adapted(1)
    its_optimizer = optimizer_of(other)
    resumed = pw.Pruner(other, its_optimizer, criterion="magnitude")
    mask_adapters(other, resumed)
    for one, state in zip((other, its_optimizer, resumed), saved, strict=True):
        one.load_state_dict(state)
    train(other, its_optimizer, 12, 20)
    assert same(dict(other.state_dict()), dict(model.state_dict()))

    merged = other.merge_and_unload()
    resumed.detach()
    last = pw.Pruner(merged, torch.optim.SGD(merged.parameters(), lr=0.1), criterion="magnitude")
    last.load_state_dict(pruner.state_dict())
    assert same(last.masks, pruner.masks)
    assert_zeros(merged, pruner.masks)


def test_a_merged_model_is_packed_and_loads_into_the_plain_one(tmp_path):
    model = adapted()
    pruner, _ = pruned(model)
    pw.save(pruner, tmp_path / "adapted.pw")
    with pytest.raises(ValueError, match=r"lora_A.*merge"):
        pw.load(tmp_path / "adapted.pw", into=plain(1))
    merged = model.merge_and_unload()
    pw.save(merged, tmp_path / "merged.pw")
    again = pw.load(tmp_path / "merged.pw", into=plain(1))
    torch.testing.assert_close(out(again), out(merged), rtol=0, atol=0)
    assert_zeros(again, pruner.masks)


@pytest.mark.parametrize("how", ["copied", "saved whole"])
def test_a_copy_of_the_model_computes_the_same(how):
    model = adapted()
    pruned(model)
    if how == "copied":
        twin = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    torch.testing.assert_close(out(twin), out(model), rtol=0, atol=0)


# ---- letting go --------------------------------------------------------------------------------------------------


def test_removed_masks_leave_the_model_as_peft_has_it():
    model = adapted()
    optimizer = optimizer_of(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    handle = mask_adapters(model, pruner)
    pruner.prune(0.7)
    train(model, optimizer)
    assert handle.layers == tuple(WEIGHTS)
    masked = out(model)
    model.merge_adapter()
    with pytest.raises(ValueError, match=r"conv.weight.*merged.*unmerge_adapter\(\)"):
        handle.remove()
    model.unmerge_adapter()
    handle.remove()
    assert not torch.allclose(out(model), masked)
    bare = adapted()
    bare.load_state_dict(model.state_dict())
    torch.testing.assert_close(out(model), out(bare), rtol=0, atol=0)
    assert any("adapters add to" in note for note in pruner.report.notes)
    assert not any("are masked" in note for note in pruner.report.notes)
    mask_adapters(model, pruner)
    torch.testing.assert_close(out(model), masked)


def test_a_report_from_before_the_masks_tells_what_is_so_now():
    model = adapted()
    pruner = pw.Pruner(model, criterion="magnitude")
    pruner.prune(0.5)
    assert any("adapters add to" in note for note in pruner.report.notes)
    mask_adapters(model, pruner)
    assert not any("adapters add to" in note for note in pruner.report.notes)
    assert any("are masked" in note for note in pruner.report.notes)


# ---- refused -----------------------------------------------------------------------------------------------------


def grouped():
    model = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Flatten())
    with pytest.warns(UserWarning, match="groups > 1"):
        return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["0"]))


def of_embeddings():
    model = nn.Sequential(nn.Embedding(8, 6), nn.Linear(6, 3))
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0", "1"]))


def of_attention():
    model = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 3))
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0"]))


def merged():
    model = adapted(init_lora_weights=False)
    model.merge_adapter()
    return model


UNFIT = {
    "dora": (lambda: adapted(use_dora=True), {}, "'conv.weight'.*DoraConv2dVariant.*use_dora=False.*ignore='conv.w"),
    "loha": (
        lambda: peft.get_peft_model(plain(), peft.LoHaConfig(r=2, target_modules=["hidden"])),
        {},
        "'hidden.weight' has adapters of peft.tuners.loha",
    ),
    "grouped": (grouped, {}, "'0.weight' is a grouped convolution"),
    "embedding": (of_embeddings, {"targets": ["0.weight", "1.weight"]}, "'0.weight' has adapters of .*Embedding"),
    "attention": (of_attention, {}, "'0.in_proj_weight' is no parameter .* in attention.*ignore='0.in_proj_weight'"),
    "merged": (merged, {}, r"'conv.weight' has adapters that are merged \(default\): model.unmerge_adapter"),
    "adapters as targets": (
        adapted,
        {"targets": [nn.Linear]},
        r"lora_A.default.weight' is an adapter.*ignore='\*.lora",
    ),
    "bias": (
        lambda: adapted(lora_bias=True, init_lora_weights=False),
        {"targets": ["hidden.weight", "hidden.bias"]},
        "'hidden.bias' is a bias.*lora_bias=False",
    ),
    "no adapters": (plain, {}, "Net has no adapters.*get_peft_model"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_be_masked_is_refused_and_nothing_has_changed(case):
    make, choices, says = UNFIT[case]
    model = make()
    pruner = pw.Pruner(model, criterion="magnitude", **choices)
    before = [vars(module).get("lora_variant") for module in model.modules()]
    with pytest.raises(ValueError, match=says):
        mask_adapters(model, pruner)
    assert [vars(module).get("lora_variant") for module in model.modules()] == before
    assert not pruner.slices.masked


def test_a_layer_that_cannot_be_masked_can_be_left_out_as_the_error_says():
    model = of_attention()
    pruner = pw.Pruner(model, criterion="magnitude", ignore="0.*weight")
    assert mask_adapters(model, pruner).layers == ()


def test_a_pruner_of_another_model_twice_and_detached():
    model = adapted()
    pruner = pw.Pruner(model, criterion="magnitude")
    with pytest.raises(ValueError, match=r"'conv.weight' is no parameter of this PeftModel"):
        mask_adapters(adapted(), pruner)
    with pytest.raises(TypeError, match="mask_adapters\\(model, PeftModel\\)"):
        mask_adapters(pruner, model)
    mask_adapters(model, pruner)
    with pytest.raises(ValueError, match=r"masked already: remove\(\)"):
        mask_adapters(model, pruner)
    pruner.detach()
    with pytest.raises(ValueError, match="was detached"):
        mask_adapters(adapted(), pruner)


def test_an_unfit_adapter_that_is_added_later_is_refused():
    model = adapted()
    pruned(model)
    before = out(model)
    with pytest.raises(ValueError, match=r"'late' is a DoraConv2dVariant on 'conv.weight'.*remove\(\)"):
        model.add_adapter("late", peft.LoraConfig(r=2, target_modules=LAYERS, use_dora=True))
    torch.testing.assert_close(out(model), before)


def test_ia3_scales_weights_and_keeps_their_zeros_without_masks():
    model = peft.get_peft_model(plain(), peft.IA3Config(target_modules=LAYERS, feedforward_modules=["hidden"]))
    optimizer = optimizer_of(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    assert mask_adapters(model, pruner).layers == ()
    report = pruner.prune(0.6)
    assert [row.name for row in report.rows] == WEIGHTS
    assert not any("adapters" in note for note in report.notes)
    train(model, optimizer)
    before = out(model)
    merged = model.merge_and_unload()
    assert_zeros(merged, pruner.masks)
    torch.testing.assert_close(out(merged), before, rtol=0, atol=1e-5)


# ---- models of transformers --------------------------------------------------------------------------------------


def llama(transformers):
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=32
    )
    return transformers.LlamaForCausalLM(config), {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def bert(transformers):
    config = transformers.BertConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=32
    )
    return transformers.BertForSequenceClassification(config), {
        "target_modules": ["query", "value"],
        "task_type": "SEQ_CLS",
    }


def gpt2(transformers):
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32)
    return transformers.GPT2LMHeadModel(config), {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
@pytest.mark.filterwarnings("ignore:`use_cache=True` is incompatible with gradient checkpointing")
@pytest.mark.parametrize("make", [llama, bert, gpt2])
@pytest.mark.parametrize("how", ["fp32", "bf16, gradient checkpointing"])
def test_a_model_of_transformers_is_tuned_pruned_and_merged(make, how):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    base, config = make(transformers)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, lora_dropout=0.1, **config))
    if how != "fp32":
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    optimizer = optimizer_of(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", schedule="cubic", total_steps=6)
    assert len(mask_adapters(model, pruner).layers) >= 4
    ids = torch.randint(0, 32, (4, 8))
    labels = ids if make is not bert else torch.tensor([0, 1, 0, 1])
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=how != "fp32"):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert pruner.sparsity == pytest.approx(0.9, abs=0.01)
    assert losses[-1] < losses[0]
    masks = pruner.masks
    with torch.no_grad():
        before = model.eval()(input_ids=ids).logits
        merged = model.merge_and_unload()
        torch.testing.assert_close(merged.eval()(input_ids=ids).logits, before, rtol=0, atol=1e-5)
    assert_zeros(merged, masks)
