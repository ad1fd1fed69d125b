"""The methods: each says who is drawn, what is summed and bounded, and what is released.

plain.py      Plain: mean gradients, nothing promised (also `deidentify`, and public starts)
noisy.py      NoisySums: sampler + bounded sum + noise, one step of every private method
private.py    private: clipped gradients of records, users, users and entities
fedavg.py     fedavg: clipped updates of users who take several steps each
uedp.py       uedp: the published algorithm, weights and coins as printed
selective.py  selective: plain tokens as they are, sensitive segments clipped and noised
regularized.py  what adversarial.py and triplet.py share: a loss on last hidden states beside the
              task's; a discriminator of authors, and distances between authors
"""

from tacit.training.methods.adversarial import AdversarialTraining
from tacit.training.methods.dp_fedavg import make_dp_fedavg
from tacit.training.methods.dp_sgd import make_dp_sgd
from tacit.training.methods.noisy_sums import (
    Losses,
    Method,
    NoisySums,
    SequentialMethod,
    StatefulMethod,
    StepStats,
)
from tacit.training.methods.plain import Plain
from tacit.training.methods.selective import SelectiveTraining
from tacit.training.methods.triplet import TripletTraining
from tacit.training.methods.uedp import make_uedp

__all__ = [
    "AdversarialTraining",
    "Losses",
    "Method",
    "NoisySums",
    "Plain",
    "SelectiveTraining",
    "SequentialMethod",
    "StatefulMethod",
    "StepStats",
    "TripletTraining",
    "make_dp_fedavg",
    "make_dp_sgd",
    "make_uedp",
]
