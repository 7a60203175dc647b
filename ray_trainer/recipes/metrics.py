"""Measures of a classifier, from counts: how many samples each class had, was said to have, and how many
were right.

Counts add up over batches and ranks, and with thousands of classes they stay small, which a confusion matrix
does not.
"""

from __future__ import annotations

import torch

__all__ = ["ClassCounts"]


class ClassCounts:
    """What was seen of a classifier so far.

    Attributes:
        values: float64, exact up to 2**53: samples right, the sum of losses, then for each class the number
            of samples that had it, then that were said to have it. Ranks add theirs up.
    """

    def __init__(self, num_classes: int, *, device: torch.device | str = "cpu") -> None:
        self._num_classes = num_classes
        self.values = torch.zeros(2 + 2 * num_classes, dtype=torch.float64, device=device)

    def add(self, logits: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> None:
        """Count a batch.

        Args:
            logits: [n, num_classes].
            labels: [n] int64.
            loss: Sum over the batch; a scalar.
        """
        predicted = logits.argmax(dim=1)
        self.values[0] += (predicted == labels).sum()
        self.values[1] += loss.double()
        own, said = self.values[2:].view(2, self._num_classes)
        own += torch.bincount(labels, minlength=self._num_classes)
        said += torch.bincount(predicted, minlength=self._num_classes)

    @property
    def num_samples(self) -> int:
        return int(self.values[2 : 2 + self._num_classes].sum())

    def mean_loss(self) -> float:
        """Of the samples."""
        return float(self.values[1]) / self.num_samples

    def accuracy(self) -> float:
        """Share of samples whose class was predicted; 0 to 1."""
        return float(self.values[0]) / self.num_samples

    def matthews_correlation(self) -> float:
        """Correlation between true and predicted classes; -1 to 1, 0 for one who always says the same.

        For any number of classes (Gorodkin 2004, as in scikit-learn); for two it is Matthews' own (1975).
        """
        true, predicted = self.values[2:].view(2, self._num_classes)
        total = true.sum()
        covariance = self.values[0] * total - true @ predicted
        spread = (total**2 - predicted @ predicted) * (total**2 - true @ true)
        return float(covariance / spread.sqrt()) if spread > 0 else 0.0
