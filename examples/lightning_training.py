"""A Lightning training that is pruned halfway, and resumed from its checkpoint as if nothing had happened.

The callback is all that is new; masks and sigma are in the Trainer's own checkpoints.
"""

from tempfile import TemporaryDirectory

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from prunewald.integrations.lightning import PrunerCallback
from prunewald.lab.data import fashion_mnist
from prunewald.lab.loop import accuracy

DATA, EPOCHS = fashion_mnist(seed=0), 8
ORDER = torch.randperm(len(DATA.train.x), generator=torch.Generator().manual_seed(0))  # of both runs, in every epoch


class Classifier(lightning.LightningModule):
    """Everybody's LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch."""
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """RMSprop, whose second moment is the uncertainty."""
        return torch.optim.RMSprop(self.parameters(), lr=1e-3)


def fit(folder: str, ckpt_path: str | None = None) -> tuple[float, float]:
    """Train, or go on from a checkpoint: the accuracy on test data, and the share of zeros."""
    model, callback = Classifier(), PrunerCallback(0.9, at_epoch=EPOCHS // 2)
    saving = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[callback, saving], logger=False, accelerator="cpu")
    batches = DataLoader(TensorDataset(DATA.train.x[ORDER], DATA.train.y[ORDER]), batch_size=100)
    trainer.fit(model, batches, ckpt_path=ckpt_path)
    return accuracy(model.net, *DATA.test), callback.pruner.sparsity


def main() -> dict[str, float]:
    """Train to the end; then again from a checkpoint after the pruning."""
    with TemporaryDirectory() as folder:
        whole, zeros = fit(folder)
        resumed, same_zeros = fit(folder, f"{folder}/epoch={EPOCHS // 2 + 1}.ckpt")
    print(f"{whole:.1%} of the test images right with {zeros:.1%} zeros; resumed: {resumed:.1%}, {same_zeros:.1%}")
    return {"whole": whole, "resumed": resumed, "zeros": zeros, "resumed zeros": same_zeros}


if __name__ == "__main__":
    main()
