"""Differential privacy in a training loop of your own, for a model of your own.

    private = make_private(model, optimizer, plan, owners=users, ledger="RUN/ledger.jsonl")
    for batch in private.batches(dataset):
        loss_per_record = ...
        private.step(loss_per_record)
    private.certificate()

The engine is that of `tacit train`: sampling, clipping, noise, ledger and checks are in
`tacit.training`, and nowhere here.
"""

from tacit.torch.private import Private, make_private
from tacit.training.dp.grad_sample_rules import Lookup, Product, Whole, rule
from tacit.training.models.gru import GateGRU as GRU
from tacit.training.models.lstm import GateLSTM as LSTM

__all__ = ["GRU", "LSTM", "Lookup", "Private", "Product", "Whole", "make_private", "rule"]
