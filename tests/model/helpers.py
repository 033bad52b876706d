"""Layers of every kind whose inputs can be read."""

from torch import nn

CONVOLUTIONS = {
    "1d": (nn.Conv1d(3, 4, 3), (5, 3, 11)),
    "1d-reflect": (nn.Conv1d(3, 4, 3, padding=2, padding_mode="reflect"), (5, 3, 11)),
    "2d": (nn.Conv2d(3, 4, 3, padding=1), (5, 3, 8, 9)),
    "2d-unbatched": (nn.Conv2d(3, 4, 3, padding=1), (3, 8, 9)),
    "2d-strided": (nn.Conv2d(3, 4, (3, 2), stride=(2, 3), padding=(0, 2), dilation=(2, 1)), (5, 3, 8, 9)),
    "2d-same": (nn.Conv2d(3, 4, (4, 3), padding="same", dilation=(2, 3)), (5, 3, 8, 9)),
    "2d-valid": (nn.Conv2d(3, 4, 3, padding="valid"), (5, 3, 8, 9)),
    "2d-circular": (nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="circular"), (5, 3, 8, 9)),
    "2d-circular-same": (nn.Conv2d(3, 4, (4, 3), padding="same", padding_mode="circular"), (5, 3, 8, 9)),
    "2d-replicate": (nn.Conv2d(3, 4, 3, padding=2, padding_mode="replicate"), (5, 3, 8, 9)),
    "2d-groups": (nn.Conv2d(6, 4, 3, groups=2), (5, 6, 8, 9)),
    "2d-depthwise": (nn.Conv2d(3, 3, 3, groups=3), (5, 3, 8, 9)),
    "2d-multiplied": (nn.Conv2d(3, 6, 3, groups=3, stride=2), (5, 3, 8, 9)),
    "3d": (nn.Conv3d(2, 4, (2, 3, 1), stride=(1, 2, 1), padding=1), (5, 2, 4, 5, 6)),
}

TRANSPOSED = {
    "1d": (nn.ConvTranspose1d(3, 4, 3), (5, 3, 7)),
    "2d": (nn.ConvTranspose2d(3, 4, (3, 2), stride=2), (2, 3, 4, 5)),
    "2d-unbatched": (nn.ConvTranspose2d(3, 4, 3, padding=1), (3, 4, 5)),
    "2d-strided": (
        nn.ConvTranspose2d(3, 4, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(2, 3)),
        (2, 3, 4, 5),
    ),
    "2d-cut": (nn.ConvTranspose2d(3, 4, 2, stride=3, padding=2), (2, 3, 4, 5)),  # padded by more than the kernel
    "2d-groups": (nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2), (2, 6, 4, 5)),
    "2d-depthwise": (nn.ConvTranspose2d(3, 3, 3, stride=2, groups=3), (2, 3, 4, 5)),
    "3d": (nn.ConvTranspose3d(2, 4, (2, 3, 1), stride=(1, 2, 1), padding=(1, 1, 0)), (2, 2, 4, 3, 2)),
}
