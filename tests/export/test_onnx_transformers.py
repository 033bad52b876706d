"""Hugging Face's models as ONNX, with attention masks and without their caches."""

import numpy as np
import pytest
import torch

from prunewald import export

transformers = pytest.importorskip("transformers", reason="pip install 'prunewald[transformers]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'prunewald[export]'")
pytestmark = pytest.mark.slow

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 50}


def batch(samples=2, length=7):
    ids = torch.randint(0, 50, (samples, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, length - 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, num_attention_heads=2, max_position_embeddings=32)
    return transformers.BertForSequenceClassification(config).eval()


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config).eval()


def logits(path, given):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_outputs()] == ["logits"]
    return session.run(None, {name: x.numpy() for name, x in given.items()})[0]


def test_a_bert_with_its_attention_mask(tmp_path):
    model, path = bert(), tmp_path / "bert.onnx"
    assert export.to_onnx(model, batch(), path) < 1e-5
    given = batch(5)
    with torch.no_grad():
        wanted = model(**given).logits.numpy()
    np.testing.assert_allclose(logits(path, given), wanted, rtol=1e-3, atol=1e-5)
    given["attention_mask"] = torch.ones_like(given["attention_mask"])
    assert not np.allclose(logits(path, given)[0], wanted[0], rtol=1e-3, atol=1e-5), "the mask counts"


def test_a_llama_with_open_lengths_and_no_cache(tmp_path):
    model, path = llama(), tmp_path / "llama.onnx"
    auto = torch.export.Dim.AUTO
    shapes = {name: {0: auto, 1: auto} for name in batch()} | {"use_cache": None}
    assert export.to_onnx(model, {**batch(), "use_cache": False}, path, dynamic_shapes=shapes) < 1e-5
    given = batch(3, 11)
    with torch.no_grad():
        wanted = model(**given, use_cache=False).logits.numpy()
    np.testing.assert_allclose(logits(path, given), wanted, rtol=1e-3, atol=1e-5)


def test_a_cache_is_left_out_and_said(tmp_path):
    with pytest.warns(UserWarning, match="'past_key_values'.*left out"):
        export.to_onnx(llama(), batch(), tmp_path / "llama.onnx")
    logits(tmp_path / "llama.onnx", batch())
