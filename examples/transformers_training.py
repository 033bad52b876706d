"""Transformers: the Trainer trains a small vision transformer, then prunes it while it trains on, by a callback."""

import tempfile
from typing import Any

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import prunewald as pw
from prunewald.integrations.transformers import PrunerCallback
from prunewald.lab.data import Images, fashion_mnist


def rows(images: Images) -> list[dict[str, torch.Tensor]]:
    """The images as the Trainer wants them."""
    return [{"pixel_values": x, "labels": y} for x, y in zip(images.x.view(-1, 1, 28, 28), images.y, strict=True)]


def right(given: Any) -> dict[str, float]:
    """The share of images that are told right."""
    return {"right": float((given.predictions.argmax(-1) == given.label_ids).mean())}


def main() -> dict[str, float]:
    """Train, train on with the callback, save, and read the sparse model again."""
    torch.manual_seed(0)
    data, found = fashion_mnist(seed=0), {}
    sizes: dict[str, Any] = {"image_size": 28, "patch_size": 7, "num_channels": 1, "num_labels": 10}
    sizes |= {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    with tempfile.TemporaryDirectory() as folder:
        batches: dict[str, Any] = {"per_device_train_batch_size": 100, "per_device_eval_batch_size": 500}
        trainer = Trainer(
            ViTForImageClassification(ViTConfig(**sizes)),
            TrainingArguments(
                folder, num_train_epochs=3, learning_rate=5e-3, save_strategy="no", use_cpu=True, **batches
            ),
            train_dataset=rows(data.train),
            eval_dataset=rows(data.test),
            compute_metrics=right,
        )
        trainer.train()
        found["dense"] = trainer.evaluate()["eval_right"]

        callback = PrunerCallback(schedule=pw.Cubic(0.8))  # it ends with the training
        trainer.add_callback(callback)
        trainer.train()
        found["pruned"] = trainer.evaluate()["eval_right"]
        print(callback.pruner.report)

        trainer.save_model(folder)
        again = ViTForImageClassification.from_pretrained(folder)
    weights = [again.get_parameter(name) for name in callback.pruner.masks]
    found["zeros"] = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
    print(f"{found['dense']:.1%} of the test images right, {found['pruned']:.1%} with {found['zeros']:.1%} zeros")
    return found


if __name__ == "__main__":
    main()
